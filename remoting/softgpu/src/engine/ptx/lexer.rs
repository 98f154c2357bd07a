//! The tokens of PTX (ISA 4.2 to 4.5).

/// A syntax error: the line at which parsing failed, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// A name, with its `%` or `$`.
    Ident(&'a str),
    /// A directive or modifier without its dot, such as `reg`, `s32` or `L2::128B`.
    Dot(&'a str),
    Int(u64),
    F32(u32),
    F64(u64),
    Str(&'a str),
    Punct(u8),
    End,
}

/// A reader of tokens with one token of look-ahead.
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// The line of `at`.
    scan_line: u32,
    peeked: Token<'a>,
    /// The line of `peeked`.
    line: u32,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Result<Self, SyntaxError> {
        let mut cursor = Self { text, at: 0, scan_line: 1, peeked: Token::End, line: 1 };
        cursor.advance()?;
        Ok(cursor)
    }

    pub fn line(&self) -> u32 {
        self.line
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line as usize, message: message.into() })
    }

    pub fn peek(&self) -> Token<'a> {
        self.peeked
    }

    pub fn advance(&mut self) -> Result<Token<'a>, SyntaxError> {
        let token = self.peeked;
        self.skip_blank()?;
        self.line = self.scan_line;
        self.peeked = self.scan()?;
        Ok(token)
    }

    pub fn accept(&mut self, punct: u8) -> Result<bool, SyntaxError> {
        let found = self.peeked == Token::Punct(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn accept_dot(&mut self, name: &str) -> Result<bool, SyntaxError> {
        let found = self.peeked == Token::Dot(name);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn expect(&mut self, punct: u8) -> Result<(), SyntaxError> {
        if self.accept(punct)? {
            return Ok(());
        }
        self.error(format!("expected '{}', found {}", punct as char, describe(self.peeked)))
    }

    pub fn ident(&mut self) -> Result<&'a str, SyntaxError> {
        match self.advance()? {
            Token::Ident(name) => Ok(name),
            other => self.error(format!("expected a name, found {}", describe(other))),
        }
    }

    pub fn dot(&mut self) -> Result<&'a str, SyntaxError> {
        match self.advance()? {
            Token::Dot(name) => Ok(name),
            other => self.error(format!("expected a directive, found {}", describe(other))),
        }
    }

    pub fn int(&mut self) -> Result<u64, SyntaxError> {
        match self.advance()? {
            Token::Int(value) => Ok(value),
            other => self.error(format!("expected a number, found {}", describe(other))),
        }
    }

    /// Skips all tokens up to the closing brace of the block. The opening brace has already been read.
    pub fn skip_block(&mut self) -> Result<(), SyntaxError> {
        let mut depth = 1;
        while depth > 0 {
            match self.advance()? {
                Token::Punct(b'{') => depth += 1,
                Token::Punct(b'}') => depth -= 1,
                Token::End => return self.error("a block is not closed"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Skips all tokens up to the next semicolon.
    pub fn skip_statement(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.advance()? {
                Token::Punct(b';') => return Ok(()),
                Token::End => return self.error("a statement is not ended by ';'"),
                _ => {}
            }
        }
    }

    /// Skips the rest of the current line, at whose end a debugging directive ends.
    pub fn skip_line(&mut self, line: u32) -> Result<(), SyntaxError> {
        while self.line == line && self.peeked != Token::End {
            self.advance()?;
        }
        Ok(())
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn skip_blank(&mut self) -> Result<(), SyntaxError> {
        let bytes = self.bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'\n' => {
                    self.scan_line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.at += 1,
                b'/' if bytes.get(self.at + 1) == Some(&b'/') => {
                    while bytes.get(self.at).is_some_and(|&b| b != b'\n') {
                        self.at += 1;
                    }
                }
                b'/' if bytes.get(self.at + 1) == Some(&b'*') => self.skip_comment()?,
                _ => break,
            }
        }
        Ok(())
    }

    fn skip_comment(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.text.get(self.at + 2..).and_then(|rest| rest.find("*/")) else {
            return self.error("a comment is not closed");
        };
        let stop = self.at + 2 + end + 2;
        self.scan_line += self.bytes()[self.at..stop].iter().filter(|&&b| b == b'\n').count() as u32;
        self.at = stop;
        Ok(())
    }

    fn name_end(&self, mut end: usize) -> usize {
        let bytes = self.bytes();
        while bytes.get(end).is_some_and(|&b| is_name(b)) {
            end += 1;
        }
        end
    }

    fn scan(&mut self) -> Result<Token<'a>, SyntaxError> {
        let bytes = self.bytes();
        let start = self.at;
        let Some(&first) = bytes.get(start) else { return Ok(Token::End) };
        match first {
            b'0'..=b'9' => self.scan_number(),
            b'"' => {
                let Some(end) = bytes[start + 1..].iter().position(|&b| b == b'"') else {
                    return self.error("a string is not closed");
                };
                self.at = start + end + 2;
                Ok(Token::Str(&self.text[start + 1..start + 1 + end]))
            }
            b'.' if bytes.get(start + 1).is_some_and(|&b| is_name(b)) => {
                let mut end = self.name_end(start + 1);
                while bytes.get(end) == Some(&b':') && bytes.get(end + 1) == Some(&b':') {
                    end = self.name_end(end + 2);
                }
                self.at = end;
                Ok(Token::Dot(&self.text[start + 1..end]))
            }
            _ if is_name(first) => {
                self.at = self.name_end(start);
                Ok(Token::Ident(&self.text[start..self.at]))
            }
            _ if first.is_ascii_graphic() => {
                self.at += 1;
                Ok(Token::Punct(first))
            }
            _ => self.error(format!("byte 0x{first:02x} has no place in PTX")),
        }
    }

    fn scan_number(&mut self) -> Result<Token<'a>, SyntaxError> {
        let bytes = self.bytes();
        let start = self.at;
        let mut end = self.name_end(start);
        let word = &self.text[start..end];
        let hex =
            |digits: &str, len: usize| (digits.len() == len).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        if let Some(digits) = word.strip_prefix("0f").or(word.strip_prefix("0F"))
            && let Some(bits) = hex(digits, 8)
        {
            self.at = end;
            return Ok(Token::F32(bits as u32));
        }
        if let Some(digits) = word.strip_prefix("0d").or(word.strip_prefix("0D"))
            && let Some(bits) = hex(digits, 16)
        {
            self.at = end;
            return Ok(Token::F64(bits));
        }
        let decimal = word.bytes().all(|b| b.is_ascii_digit());
        let fraction = decimal && bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        if fraction {
            end = self.name_end(end + 1);
        }
        let exponent = |b: Option<&u8>| matches!(b, Some(b'e' | b'E'));
        if exponent(bytes.get(end - 1)) && matches!(bytes.get(end), Some(b'+' | b'-')) && !word.starts_with("0x") {
            end = self.name_end(end + 1);
        }
        let word = &self.text[start..end];
        self.at = end;
        let digits = word.trim_end_matches(['U', 'u']);
        let value = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => u64::from_str_radix(&digits[2..], 16).ok(),
            [b'0', b'b' | b'B', ..] => u64::from_str_radix(&digits[2..], 2).ok(),
            [b'0', _, ..] if digits.bytes().all(|b| b.is_ascii_digit()) => u64::from_str_radix(digits, 8).ok(),
            _ => digits.parse().ok(),
        };
        if let Some(value) = value {
            return Ok(Token::Int(value));
        }
        match word.parse::<f64>() {
            Ok(value) => Ok(Token::F64(value.to_bits())),
            Err(_) => self.error(format!("'{word}' is not a number")),
        }
    }
}

pub fn describe(token: Token) -> String {
    match token {
        Token::Ident(name) => format!("'{name}'"),
        Token::Dot(name) => format!("'.{name}'"),
        Token::Int(value) => format!("'{value}'"),
        Token::F32(_) | Token::F64(_) => "a floating-point number".to_owned(),
        Token::Str(_) => "a string".to_owned(),
        Token::Punct(byte) => format!("'{}'", byte as char),
        Token::End => "the end of the text".to_owned(),
    }
}
