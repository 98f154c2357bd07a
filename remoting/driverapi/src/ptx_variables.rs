//! The names and sizes of a PTX text's variables. Only declarations in `.global` and `.const` are parsed; all other
//! text is skipped without a check.

/// The size of an array whose length is not a plain number. It exceeds any memory, so the text is not loaded.
const TOO_MUCH: u64 = u64::MAX;
/// The assumed size of an element whose type is unknown here, and of a texture reference: an upper bound.
const LARGEST_ELEMENT: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A directive such as `.global`, without the dot.
    Directive(&'a str),
    /// A name, a number or an instruction with its suffixes.
    Word(&'a str),
    Punct(u8),
}

struct Tokens<'a> {
    text: &'a str,
    /// The rest of consecutive directives without space between them: `.visible.global`.
    directives: &'a str,
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.') || !byte.is_ascii()
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(rest) = self.directives.strip_prefix('.') {
            let (one, others) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
            self.directives = others;
            return Some(Token::Directive(one));
        }
        loop {
            self.text = self.text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
            let after = match self.text.as_bytes() {
                [b'/', b'/', ..] => self.text.split_once('\n'),
                [b'/', b'*', ..] => self.text[2..].split_once("*/"),
                [] => return None,
                _ => break,
            };
            self.text = after.map_or("", |(_, after)| after);
        }
        let length = self.text.bytes().position(|byte| !in_word(byte)).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(length.max(1));
        self.text = rest;
        match word.as_bytes()[0] {
            byte if length == 0 => Some(Token::Punct(byte)),
            b'.' => {
                self.directives = word;
                self.next()
            }
            _ => Some(Token::Word(word)),
        }
    }
}

/// Returns the total size of all variables of a text in bytes.
pub fn bytes(text: &str) -> u64 {
    all(text).into_iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
}

/// Returns the names of all variables of a text.
pub fn names(text: &str) -> Vec<&str> {
    all(text).into_iter().map(|(name, _)| name).collect()
}

fn all(text: &str) -> Vec<(&str, u64)> {
    let mut tokens = Tokens { text, directives: "" };
    let (mut all, mut before) = (Vec::new(), None);
    while let Some(token) = tokens.next() {
        let declares = matches!(token, Token::Directive("global" | "const"));
        // Skip the address space of a pointer parameter, and variables of another text.
        if declares && !matches!(before, Some(Token::Directive("ptr" | "extern"))) {
            declaration(&mut tokens, &mut all);
        }
        before = Some(token);
    }
    all
}

/// Parses a declaration after its space: `.align 4 .v2 .f32 name[3][4] = { ... }, other;`.
fn declaration<'a>(tokens: &mut Tokens<'a>, all: &mut Vec<(&'a str, u64)>) {
    let (mut element, mut vector, mut depth) = (LARGEST_ELEMENT, 1, 0u32);
    // The state of the current name: its number of elements from the dimensions, and whether the initialiser determines
    // one dimension.
    let (mut named, mut count, mut open, mut values) = (None, 1u64, false, 0u64);
    while let Some(token) = tokens.next() {
        match token {
            Token::Directive("align") => drop(tokens.next()),
            Token::Directive("attribute") => drop(tokens.find(|token| *token == Token::Punct(b')'))),
            Token::Directive("v2") => vector = 2,
            Token::Directive("v4") => vector = 4,
            Token::Directive("v8") => vector = 8,
            Token::Directive(name) => element = element_bytes(name),
            Token::Word(_) if depth > 0 => {}
            Token::Word(name) => named = named.or(Some(name)),
            Token::Punct(b'[') if depth == 0 => match dimension(tokens) {
                Some(length) => count = count.saturating_mul(length),
                None => open = true,
            },
            Token::Punct(b'{') => depth += 1,
            Token::Punct(b'}') => depth = depth.saturating_sub(1),
            Token::Punct(b',') if depth > 0 => values += 1,
            Token::Punct(b',' | b';') => {
                let elements = if open { count.saturating_mul(values + 1) } else { count };
                all.extend(named.map(|name| (name, elements.saturating_mul(element * vector))));
                (named, count, open, values) = (None, 1, false, 0);
                if token == Token::Punct(b';') {
                    return;
                }
            }
            Token::Punct(_) => {}
        }
    }
    // The text ends inside a declaration; drivers refuse such a text.
}

/// Parses a dimension after its opening bracket. `None` for empty brackets.
fn dimension(tokens: &mut Tokens) -> Option<u64> {
    match tokens.next() {
        Some(Token::Punct(b']')) => None,
        Some(Token::Word(text)) if tokens.next() == Some(Token::Punct(b']')) => Some(number(text).unwrap_or(TOO_MUCH)),
        _ => Some(TOO_MUCH),
    }
}

/// Parses an integer in C syntax.
fn number(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('U').unwrap_or(text);
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    u64::from_str_radix(digits, radix).ok()
}

fn element_bytes(name: &str) -> u64 {
    match name {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        _ => LARGEST_ELEMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, names};

    #[test]
    fn variables_are_counted_in_every_form() {
        let cases = [
            (".global .u32 a;", 4),
            (".visible .global .align 4 .b8 a[1000];", 1000),
            (".weak.global.f64 a[0x10][2U];", 256),
            (".const .v4 .f32 a[010];", 128),
            (".global .align 8 .u64 a[2] = {b, c+4};", 16),
            (".global .u16 a[] = {1, 2, 3};", 6),
            (".global .u16 a[][2] = {{1, 2}, {3, 4}};", 16),
            (".global .b16 a = 1, b[3] = {1, 2, 3}, c;", 10),
            (".global .attribute(.managed) .align 4 .u32 a;", 4),
            (".global /* .b8 x[7]; */ .u32 a; // .global .u32 b;", 4),
            (".entry k() { .global .b8 a[5]; ld.global.u32 %r1, [a]; }", 5),
            (".global .texref t;", 16),
        ];
        for (text, size) in cases {
            assert_eq!(bytes(text), size, "{text}");
        }
    }

    #[test]
    fn variables_have_their_names() {
        let text = ".global .u64 a[2] = {b, c+4}, d; .visible .const .align 8 .b8 e$1[4]; .extern .global .u32 f;";
        assert_eq!(names(text), ["a", "d", "e$1"]);
    }

    #[test]
    fn what_is_no_variable_is_not() {
        for text in [
            ".extern .global .b8 a[100];",
            ".entry k(.param .u64 .ptr .global .align 4 a) { st.global.u32 [%rd1], %r1; ret; }",
            ".shared .b8 a[100]; .local .b8 b[100];",
            "",
            ".global",
            "/*",
            "\u{e9}.global",
        ] {
            assert_eq!(bytes(text), 0, "{text}");
        }
    }

    #[test]
    fn a_size_that_is_no_number_is_too_much() {
        for size in ["4*1024", "18446744073709551616", "WARP_SZ", "(2)"] {
            assert_eq!(bytes(&format!(".global .b8 a[{size}];")), u64::MAX, "{size}");
        }
        assert_eq!(bytes(".global .b64 a[4294967296][4294967296];"), u64::MAX);
    }
}
