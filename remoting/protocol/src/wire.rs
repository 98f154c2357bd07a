//! Little-endian encoding of fields: fixed sizes, `u32` counts before lists, no padding, no optional parts.

/// The reason why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The payload ends inside a field.
    Truncated,
    /// Bytes follow the last field of a message that has no tail.
    Trailing,
    /// A field has an invalid value: a text that is not UTF-8, or a boolean that is neither 0 nor 1.
    Invalid,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DecodeError::Truncated => "message ends too early",
            DecodeError::Trailing => "message continues after its end",
            DecodeError::Invalid => "message holds a value its field cannot have",
        })
    }
}

impl std::error::Error for DecodeError {}

/// Appends fields to a byte vector.
#[derive(Debug, Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn put<T: Wire>(&mut self, value: &T) -> &mut Self {
        value.put(self);
        self
    }

    /// Appends bytes without a count: the tail of a message, or a structure of known size.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// Reads fields from the front of a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub fn get<T: Wire>(&mut self) -> Result<T, DecodeError> {
        T::get(self)
    }

    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        if len > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(head)
    }

    /// Returns all remaining bytes: the tail of a message.
    pub fn tail(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// A type that can be encoded as a field of a message.
pub trait Wire: Sized {
    /// The minimum size of an encoded value. A list's count is checked with it before memory is allocated.
    const MIN_SIZE: usize;
    fn put(&self, w: &mut Writer);
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
    /// Returns the number of bytes that `put` appends.
    fn size(&self) -> usize;
}

macro_rules! number {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            const MIN_SIZE: usize = size_of::<$t>();
            fn put(&self, w: &mut Writer) {
                w.bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(r.raw(size_of::<$t>())?);
                Ok(<$t>::from_le_bytes(raw))
            }
            fn size(&self) -> usize {
                size_of::<$t>()
            }
        }
    )*};
}
number!(u8, u16, u32, u64, i32, i64, f32);

impl Wire for bool {
    const MIN_SIZE: usize = 1;
    fn put(&self, w: &mut Writer) {
        w.bytes.push(u8::from(*self));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid),
        }
    }
    fn size(&self) -> usize {
        1
    }
}

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const MIN_SIZE: usize = N * T::MIN_SIZE;
    fn put(&self, w: &mut Writer) {
        self.iter().for_each(|v| v.put(w));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut out = [T::default(); N];
        for v in &mut out {
            *v = r.get()?;
        }
        Ok(out)
    }
    fn size(&self) -> usize {
        self.iter().map(Wire::size).sum()
    }
}

impl<T: Wire> Wire for Vec<T> {
    const MIN_SIZE: usize = 4;
    fn put(&self, w: &mut Writer) {
        (self.len() as u32).put(w);
        self.iter().for_each(|v| v.put(w));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = r.get::<u32>()? as usize;
        if count.saturating_mul(T::MIN_SIZE.max(1)) > r.remaining() {
            return Err(DecodeError::Truncated);
        }
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(r.get()?);
        }
        Ok(out)
    }
    fn size(&self) -> usize {
        4 + self.iter().map(Wire::size).sum::<usize>()
    }
}

impl Wire for String {
    const MIN_SIZE: usize = 4;
    fn put(&self, w: &mut Writer) {
        (self.len() as u32).put(w);
        w.raw(self.as_bytes());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = r.get::<u32>()? as usize;
        let raw = r.raw(len)?;
        std::str::from_utf8(raw).map(str::to_owned).map_err(|_| DecodeError::Invalid)
    }
    fn size(&self) -> usize {
        4 + self.len()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const MIN_SIZE: usize = A::MIN_SIZE + B::MIN_SIZE;
    fn put(&self, w: &mut Writer) {
        self.0.put(w);
        self.1.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((r.get()?, r.get()?))
    }
    fn size(&self) -> usize {
        self.0.size() + self.1.size()
    }
}
