//! The value of a field of a record, and its conversion from and to JSON.

use std::fmt::Write;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    Real(f64),
    /// A text. Handles (`stream#2`) and addresses (`memory#3+16`) are texts too.
    Text(String),
    List(Vec<Value>),
    Map(Fields),
    /// A handle of this kind that no recorded call returned. It occurs only in a replay, and equals any name that is
    /// new as well.
    Unnamed(&'static str, u64),
}

pub type Fields = Vec<(String, Value)>;

impl Value {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn integer(word: u64, size: usize, signed: bool) -> Self {
        let unused = 64 - 8 * size.clamp(1, 8) as u32;
        let (word, extended) = (word << unused >> unused, (word << unused) as i64 >> unused);
        if signed && extended < 0 { Self::Negative(extended) } else { Self::Unsigned(word) }
    }

    /// Returns the 64-bit word that represents an integer in C, or `None` if the value is not an integer.
    pub fn word(&self) -> Option<u64> {
        match self {
            Self::Null => Some(0),
            Self::Unsigned(word) => Some(*word),
            Self::Negative(word) => Some(*word as u64),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn list(&self) -> &[Value] {
        if let Self::List(values) = self { values } else { &[] }
    }

    pub fn field(&self, name: &str) -> Option<&Value> {
        if let Self::Map(fields) = self { field(fields, name) } else { None }
    }

    /// Returns the bytes of a description, or `None` if the contents were not recorded.
    pub fn contents(&self) -> Option<Vec<u8>> {
        from_hex(self.field("contents")?.as_text()?)
    }

    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Unsigned(word) => write!(out, "{word}").unwrap_or_default(),
            Self::Negative(word) => write!(out, "{word}").unwrap_or_default(),
            Self::Real(real) if real.is_finite() => write!(out, "{real:?}").unwrap_or_default(),
            Self::Real(real) => write!(out, "\"{real}\"").unwrap_or_default(),
            Self::Text(text) => write_text(text, out),
            Self::List(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    value.write(out);
                }
                out.push(']');
            }
            Self::Map(fields) => write_fields(fields, out),
            Self::Unnamed(kind, _) => write!(out, "\"{kind} of nobody\"").unwrap_or_default(),
        }
    }
}

pub fn field<'a>(fields: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    fields.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

pub fn write_fields(fields: &[(String, Value)], out: &mut String) {
    out.push('{');
    for (index, (name, value)) in fields.iter().enumerate() {
        out.push_str(if index > 0 { "," } else { "" });
        write_text(name, out);
        out.push(':');
        value.write(out);
    }
    out.push('}');
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' => write!(out, "\\u{:04x}", character as u32).unwrap_or_default(),
            _ => out.push(character),
        }
    }
    out.push('"');
}

impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match json {
            Json::Null => Self::Null,
            Json::Bool(bit) => Self::Unsigned(u64::from(*bit)),
            Json::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(word), _) => Self::Unsigned(word),
                (None, Some(word)) => Self::Negative(word),
                _ => Self::Real(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text(text),
            Json::Array(values) => Self::List(values.iter().map(Self::from).collect()),
            Json::Object(fields) => Self::Map(fields.iter().map(|(key, value)| (key.clone(), value.into())).collect()),
        }
    }
}

/// The 64-bit FNV-1a hash of a sequence of pieces.
#[derive(Clone, Copy)]
pub struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|digit| DIGITS[usize::from(digit)] as char).collect()
}

pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let fields = vec![
            ("null".into(), Value::Null),
            ("most".into(), Value::Unsigned(u64::MAX)),
            ("least".into(), Value::Negative(i64::MIN)),
            ("real".into(), Value::Real(0.1)),
            ("odd \"text\"\n".into(), Value::text("\\\u{1}\u{e9}")),
            ("list".into(), Value::List(vec![Value::Unsigned(1), Value::List(vec![])])),
        ];
        let value = Value::Map(fields);
        let mut text = String::new();
        value.write(&mut text);
        let read = Value::from(&serde_json::from_str::<serde_json::Value>(&text).unwrap());
        for (name, expected) in [("null", Value::Null), ("most", Value::Unsigned(u64::MAX)), ("real", Value::Real(0.1))]
        {
            assert_eq!(read.field(name), Some(&expected));
        }
        let same = |name: &str| assert_eq!(read.field(name), value.field(name), "{name}");
        for name in ["least", "odd \"text\"\n", "list"] {
            same(name);
        }
        assert!(!text.contains('\n'));
    }

    #[test]
    fn integers_have_the_size_and_sign_of_their_type() {
        assert_eq!(Value::integer(0xffff_ffff_ffff_fffe, 4, true), Value::Negative(-2));
        assert_eq!(Value::integer(0xffff_ffff_ffff_fffe, 4, false), Value::Unsigned(0xffff_fffe));
        assert_eq!(Value::integer(u64::MAX, 8, false), Value::Unsigned(u64::MAX));
        assert_eq!(Value::Negative(-2).word(), Some(-2i64 as u64));
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // These are test vectors of draft-eastlake-fnv.
        let hash = |text: &str| {
            let mut hash = Hash::default();
            hash.add(text.as_bytes());
            hash.text()
        };
        assert_eq!(hash(""), "cbf29ce484222325");
        assert_eq!(hash("a"), "af63dc4c8601ec8c");
        assert_eq!(hash("foobar"), "85944171f73967e8");
    }

    #[test]
    fn hex_is_read_or_refused() {
        assert_eq!(from_hex(&to_hex(&[0, 0x9f, 255])), Some(vec![0, 0x9f, 255]));
        assert_eq!((from_hex("0"), from_hex("zz"), from_hex("é")), (None, None, None));
    }
}
