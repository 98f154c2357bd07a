//! Converts the arguments and results of one call into values for a record, and recorded values back into the program's
//! memory.
//!
//! All pointers belong to the program or to the driver. The table describes the memory that they point to, as CUDA
//! requires it.

use crate::copies::Copy;
use crate::memory::{self, Area};
use crate::names::{Allocation, Names};
use crate::registers::Arguments;
use crate::signature::{self, Described, Direction, Factor, Function, Length, Type};
use crate::value::{Fields, Value, from_hex, to_hex};
use driverapi::image;
use std::ffi::c_void;

/// Returns the sizes in bytes of a function's kernel parameters, or `None` if they are not known.
pub type Layout<'a> = &'a dyn Fn(u64) -> Option<Vec<usize>>;

#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub function: &'static Function,
    pub arguments: &'a Arguments,
    /// Whether the description of an output buffer contains its bytes, and not only its length and hash.
    pub contents: bool,
}

type Parameter = (usize, &'static Described);

impl Call<'_> {
    fn parameters(&self, direction: Direction) -> impl Iterator<Item = Parameter> + use<> {
        let described = self.function.parameters.unwrap_or_default().iter().enumerate();
        described.filter(move |(_, parameter)| parameter.direction == direction)
    }

    pub fn word(&self, place: usize) -> u64 {
        self.arguments.words[place]
    }

    /// Returns the argument with this name, or `None` if the function has no such parameter.
    pub fn named(&self, name: &str) -> Option<u64> {
        let described = self.function.parameters.unwrap_or_default();
        described.iter().position(|parameter| parameter.name == name).map(|place| self.word(place))
    }

    fn length(&self, length: Length) -> u64 {
        let product = length.0.iter().map(|factor| match factor {
            Factor::Constant(number) => *number as u64,
            Factor::Parameter(place) => self.number(*place),
        });
        product.fold(1, u64::saturating_mul)
    }

    /// Returns the value of an integer parameter, which may be an input or an output.
    fn number(&self, place: usize) -> u64 {
        let described = &self.function.parameters.unwrap_or_default()[place];
        let Type::Integer(size, signed) = described.of else { return 0 };
        let word = match described.direction {
            Direction::In => self.word(place),
            // SAFETY: the driver has written the output there.
            Direction::Out => unsafe { memory::word(self.word(place), size) }.unwrap_or(0),
        };
        Value::integer(word, size, signed).word().filter(|word| (*word as i64) >= 0).unwrap_or(0)
    }

    pub fn inputs(&self, names: &mut Names, layout: Layout) -> Fields {
        let inputs = self.parameters(Direction::In);
        inputs
            .map(|(place, described)| (described.name.into(), self.input(place, &described.of, names, layout)))
            .collect()
    }

    fn input(&self, place: usize, of: &Type, names: &mut Names, layout: Layout) -> Value {
        let word = self.word(place);
        // SAFETY: the program passed these pointers, and the table states what they point to.
        unsafe {
            match *of {
                Type::Integer(size, signed) => Value::integer(word, size, signed),
                Type::Handle(kind) => names.handle(kind, word),
                Type::Address | Type::Freed => names.address(word),
                Type::Text => memory::text(word).map_or(Value::Null, Value::Text),
                _ if word == 0 => Value::Null,
                Type::Host | Type::Registered(_) | Type::Callback(_) => Value::text("host"),
                Type::To(_) => names.address(word),
                Type::File => describe_file(&memory::text(word).unwrap_or_default()),
                Type::Bytes(length) => Area::line(word, self.length(length)).describe(false),
                Type::Data(length) | Type::From(length) => match (names.address(word), names.allocation_at(word)) {
                    // The program may still fill page-locked memory that a stream reads later.
                    (at, Some(found)) if !found.hosts || self.function.is_asynchronous() => at,
                    (at, _) => Value::Map(vec![
                        ("at".into(), at),
                        ("data".into(), Area::line(word, self.length(length)).describe(false)),
                    ]),
                },
                Type::List(of, length) => {
                    let values = (0..self.length(length)).map(|i| get(of, word + i * size_of_type(of) as u64, names));
                    Value::List(values.collect())
                }
                Type::Structure(..) => get(of, word, names),
                Type::PoolAttribute(_) | Type::StreamAttribute(_) => {
                    self.variable(of).map_or(Value::text("unknown"), |of| get(&of, word, names))
                }
                Type::Image => describe_image(word),
                Type::Copy2d | Type::Copy3d => {
                    Copy::read(word, matches!(of, Type::Copy3d)).map_or(Value::Null, |copy| copy.describe(names))
                }
                Type::Launch => describe_launch(word, names),
                Type::Params(function) => describe_parameters(word, layout(self.word(function)), names),
                Type::Extra => describe_extra(word, names),
                _ => Value::text("unknown"),
            }
        }
    }

    /// Returns the type of an attribute's value. It depends on the attribute that the call requests.
    fn variable(&self, of: &Type) -> Option<Type> {
        match *of {
            Type::PointerAttribute(place) => signature::pointer_attribute(self.number(place)),
            Type::PoolAttribute(place) => signature::pool_attribute(self.number(place)),
            Type::StreamAttribute(place) => signature::launch_attribute(self.number(place)),
            _ => None,
        }
    }

    /// Returns the driver's outputs after a call that succeeded. New handles and allocations get their names.
    pub fn outputs(&self, names: &mut Names) -> Fields {
        let mut outputs = Fields::new();
        for (place, described) in self.parameters(Direction::Out).filter(|(place, _)| self.word(*place) != 0) {
            let value = self.output(place, &described.of, names);
            outputs.extend(value.map(|value| (described.name.into(), value)));
        }
        for (place, described) in self.parameters(Direction::In) {
            if let Type::Registered(length) = described.of {
                let name = names.allocate(self.word(place), self.length(length), true);
                outputs.push(("registered".into(), name));
            }
        }
        if let Some((_, area)) = self.host_target(names).filter(|_| !self.function.is_asynchronous()) {
            outputs.push(("written".into(), area.describe(self.contents)));
        }
        outputs
    }

    fn output(&self, place: usize, of: &Type, names: &mut Names) -> Option<Value> {
        let at = self.word(place);
        // SAFETY: the driver has written the output there.
        unsafe {
            Some(match *of {
                Type::Memory(length) => names.allocate(memory::word(at, 8)?, self.length(length), false),
                Type::PageLocked(length) => names.allocate(memory::word(at, 8)?, self.length(length), true),
                Type::TextBuffer(length) if self.length(length) > 0 => Value::Text(memory::text(at)?),
                Type::StaticText => memory::text(memory::word(at, 8)?).map_or(Value::Null, Value::Text),
                Type::Bytes(length) => Value::Text(to_hex(memory::slice(at, self.length(length) as usize))),
                Type::Blob(length) => {
                    Value::Text(to_hex(memory::slice(memory::word(at, 8)?, self.length(length) as usize)))
                }
                Type::List(of, length) => {
                    let values = (0..self.length(length)).map(|i| get(of, at + i * size_of_type(of) as u64, names));
                    Value::List(values.collect())
                }
                Type::PointerAttributes(count, attributes) => {
                    let values = (0..self.number(count)).map(|i| {
                        let attribute = memory::word(self.word(attributes) + 4 * i, 4).unwrap_or(0);
                        let of = signature::pointer_attribute(attribute);
                        let place = memory::word(at + 8 * i, 8).unwrap_or(0);
                        of.filter(|_| place != 0).map_or(Value::Null, |of| get(&of, place, names))
                    });
                    Value::List(values.collect())
                }
                Type::PointerAttribute(_) | Type::PoolAttribute(_) | Type::StreamAttribute(_) => {
                    self.variable(of).map_or(Value::text("unknown"), |of| get(&of, at, names))
                }
                Type::Integer(..) | Type::Float | Type::Handle(_) | Type::NewHandle(_) | Type::Address => {
                    get(of, at, names)
                }
                Type::Structure(..) => get(of, at, names),
                Type::Table => Value::text(if memory::word(at, 8)? == 0 { "none" } else { "table" }),
                // Other code records these outputs: the recorder the entries that it replaces, and `Arrivals` the data
                // that arrive later.
                _ => return None,
            })
        }
    }

    /// Returns the host memory that this call has written or will write later, and the name of its parameter.
    pub fn host_target(&self, names: &Names) -> Option<(&'static str, Area)> {
        let described = self.function.parameters.unwrap_or_default();
        described.iter().enumerate().find_map(|(place, parameter)| {
            let word = self.word(place);
            let device = || names.allocation_at(word).is_some_and(|found| !found.hosts);
            let area = match parameter.of {
                Type::Data(length) if parameter.direction == Direction::Out => Area::line(word, self.length(length)),
                Type::To(length) if !device() => Area::line(word, self.length(length)),
                // SAFETY: the program passed this structure.
                Type::Copy2d => unsafe { Copy::read(word, false) }?.target(names)?,
                // SAFETY: as above.
                Type::Copy3d => unsafe { Copy::read(word, true) }?.target(names)?,
                _ => return None,
            };
            (area.address != 0).then_some((parameter.name, area))
        })
    }

    /// Returns the page-locked allocations that a kernel or the driver may write because of this call.
    pub fn may_write(&self, inputs: &Value, names: &Names) -> Vec<Allocation> {
        let fields: &[&str] = match self.function.base() {
            base if base.starts_with("cuLaunch") => &["parameters", "extra"],
            base if base.starts_with("cuMemset") => &["address"],
            base if base.starts_with("cuMemcpy") && self.host_target(names).is_none() => &["to"],
            _ => &[],
        };
        let mut named = Vec::new();
        fields.iter().filter_map(|name| inputs.field(name)).for_each(|value| addresses(value, &mut named));
        let found = named.iter().filter_map(|name| names.allocation_at(names.address_of(name)?));
        let mut found: Vec<_> = found.filter(|found| found.hosts).collect();
        found.dedup();
        found
    }

    /// Returns the address of the allocation that this call frees if it succeeds.
    pub fn freed(&self) -> Option<u64> {
        self.parameters(Direction::In).find(|(_, p)| matches!(p.of, Type::Freed)).map(|(place, _)| self.word(place))
    }

    /// Writes the recorded outputs to the program's memory, with this process's objects in place of the recorded names.
    ///
    /// # Errors
    /// A message, if the recording does not contain an output in a usable form.
    pub fn restore(&self, recorded: &Value, world: &mut dyn World) -> Result<(), String> {
        // Handle allocations last, because the size of an allocation may be another output of the same call.
        let (allocating, plain): (Vec<_>, Vec<_>) =
            self.parameters(Direction::Out).partition(|(_, p)| matches!(p.of, Type::Memory(_) | Type::PageLocked(_)));
        for (place, described) in plain.into_iter().chain(allocating).filter(|(place, _)| self.word(*place) != 0) {
            if let Some(value) = recorded.field(described.name) {
                let missing = || format!("its answer `{}` is not recorded in a form that can be given", described.name);
                self.answer(place, &described.of, value, world).ok_or_else(missing)?;
            }
        }
        for (place, described) in self.parameters(Direction::In) {
            if let (Type::Registered(length), Some(name)) = (described.of, recorded.field("registered")) {
                world.adopt(name, self.word(place), self.length(length));
            }
        }
        Ok(())
    }

    fn answer(&self, place: usize, of: &Type, value: &Value, world: &mut dyn World) -> Option<()> {
        let at = self.word(place);
        // SAFETY: the program passed this address for the output.
        unsafe {
            match *of {
                Type::Memory(length) => {
                    memory::write(at, &world.allocation(value, self.length(length), false)?.to_le_bytes());
                }
                Type::PageLocked(length) => {
                    memory::write(at, &world.allocation(value, self.length(length), true)?.to_le_bytes());
                }
                Type::TextBuffer(length) => {
                    let kept = (self.length(length) as usize).checked_sub(1)?;
                    let text = value.as_text()?.as_bytes();
                    memory::write(at, &text[..text.len().min(kept)]);
                    memory::write(at + text.len().min(kept) as u64, &[0]);
                }
                Type::StaticText => {
                    let kept = value.as_text().map_or(0, |text| kept(format!("{text}\0").into_bytes()));
                    memory::write(at, &kept.to_le_bytes());
                }
                Type::Bytes(length) => {
                    let bytes = from_hex(value.as_text()?)?;
                    memory::write(at, bytes.get(..self.length(length) as usize)?);
                }
                Type::Blob(_) => memory::write(at, &kept(from_hex(value.as_text()?)?).to_le_bytes()),
                Type::List(of, length) => {
                    let places = (0..self.length(length)).map(|i| at + i * size_of_type(of) as u64);
                    places.zip(value.list()).try_for_each(|(at, value)| put(of, at, value, world))?;
                }
                Type::PointerAttributes(_, attributes) => {
                    for (i, value) in (0..).zip(value.list()) {
                        let attribute = memory::word(self.word(attributes) + 4 * i, 4)?;
                        let place = memory::word(at + 8 * i, 8)?;
                        if place != 0 {
                            put(&signature::pointer_attribute(attribute)?, place, value, world)?;
                        }
                    }
                }
                Type::PointerAttribute(_) | Type::PoolAttribute(_) | Type::StreamAttribute(_) => {
                    put(&self.variable(of)?, at, value, world)?;
                }
                Type::Table => memory::write(at, &world.table(self.named("uuid")?)?.to_le_bytes()),
                Type::Entry => memory::write(at, &world.entry(value).to_le_bytes()),
                _ => put(of, at, value, world)?,
            }
        }
        Some(())
    }
}

/// The objects that a replay uses in place of the driver's objects.
pub trait World {
    fn handle(&mut self, kind: &'static str, name: &Value) -> Option<u64>;
    fn address(&mut self, name: &Value) -> Option<u64>;
    fn allocation(&mut self, name: &Value, bytes: u64, usable: bool) -> Option<u64>;
    fn adopt(&mut self, name: &Value, address: u64, bytes: u64);
    fn table(&mut self, uuid: u64) -> Option<u64>;
    /// Returns the address of this library's stub for a recorded symbol, or 0 if there is none.
    fn entry(&self, symbol: &Value) -> u64;
}

/// Returns the address of a copy of `bytes` that stays valid until the process ends, like memory of a driver.
fn kept(bytes: Vec<u8>) -> u64 {
    bytes.leak().as_ptr() as usize as u64
}

fn size_of_type(of: &Type) -> usize {
    match *of {
        Type::Integer(size, _) | Type::Structure(size, _) => size,
        Type::Float => 4,
        _ => 8,
    }
}

/// Reads a value of type `of` at the address `at`.
///
/// # Safety
/// `at` must be null or the address of a value of this type.
unsafe fn get(of: &Type, at: u64, names: &mut Names) -> Value {
    // SAFETY: the caller guarantees it (see "# Safety").
    let Some(word) = (unsafe { memory::word(at, size_of_type(of).min(8)) }) else { return Value::Null };
    match *of {
        Type::Integer(size, signed) => Value::integer(word, size, signed),
        Type::Float => Value::Real(f64::from(f32::from_bits(word as u32))),
        Type::Handle(kind) => names.handle(kind, word),
        Type::NewHandle(kind) => names.new_handle(kind, word),
        Type::Structure(_, fields) => {
            // SAFETY: a field of the structure at `at`.
            let get = |(offset, name, of): &(usize, &str, Type)| {
                ((*name).into(), unsafe { get(of, at + *offset as u64, names) })
            };
            Value::Map(fields.iter().map(get).collect())
        }
        _ => names.address(word),
    }
}

/// Writes a recorded value of type `of` to the address `at`. Returns `None` if the value does not fit the type.
///
/// # Safety
/// `at` must be null or an address to which a value of this type may be written.
unsafe fn put(of: &Type, at: u64, value: &Value, world: &mut dyn World) -> Option<()> {
    let word = match *of {
        Type::Integer(..) => value.word()?,
        Type::Float => match value {
            Value::Real(real) => u64::from((*real as f32).to_bits()),
            whole => u64::from((whole.word()? as f32).to_bits()),
        },
        Type::Handle(kind) | Type::NewHandle(kind) => world.handle(kind, value)?,
        Type::Address => world.address(value)?,
        Type::Structure(_, fields) => {
            let mut fields = fields.iter();
            // SAFETY: a field of the structure at `at`.
            return fields
                .try_for_each(|(offset, name, of)| unsafe { put(of, at + *offset as u64, value.field(name)?, world) });
        }
        // A value of any other type is left unchanged.
        _ => return Some(()),
    };
    // SAFETY: the caller guarantees it (see "# Safety").
    unsafe { memory::write(at, &word.to_le_bytes()[..size_of_type(of)]) };
    Some(())
}

fn describe_file(path: &str) -> Value {
    let bytes = std::fs::read(path);
    bytes.map_or(Value::text("missing"), |it| Area::line(it.as_ptr() as u64, it.len() as u64).describe(false))
}

/// Returns a description of the images at an address.
///
/// # Safety
/// `at` must be the address of an image or of a wrapper of images.
unsafe fn describe_image(at: u64) -> Value {
    // SAFETY: the caller guarantees it (see "# Safety").
    let Ok(images) = (unsafe { image::images(at as usize as *const c_void) }) else { return Value::text("unknown") };
    Value::List(
        images.iter().map(|bytes| Area::line(bytes.as_ptr() as u64, bytes.len() as u64).describe(false)).collect(),
    )
}

/// Returns a description of a launch configuration.
///
/// # Safety
/// `at` must be null or the address of a `CUlaunchConfig`.
unsafe fn describe_launch(at: u64, names: &mut Names) -> Value {
    use driverapi::types::{CUlaunchAttribute, CUlaunchConfig};
    // SAFETY: the caller guarantees it, also for the list of attributes.
    let Some(config) = (unsafe { memory::value::<CUlaunchConfig>(at) }) else { return Value::Null };
    let list = |words: [u32; 3]| Value::List(words.map(|word| Value::Unsigned(word.into())).into());
    let place = |index: u32| config.attrs as u64 + u64::from(index) * size_of::<CUlaunchAttribute>() as u64;
    let attributes = (0..if config.attrs.is_null() { 0 } else { config.numAttrs }).map(|index| {
        // SAFETY: the caller guarantees it. The value comes after the number and the padding.
        let id = unsafe { memory::word(place(index), 4) }.unwrap_or(0);
        // SAFETY: as above.
        let of = signature::launch_attribute(id);
        let value = of.map_or(Value::text("unknown"), |of| unsafe { get(&of, place(index) + 8, names) });
        Value::List(vec![Value::Unsigned(id), value])
    });
    let attributes = Value::List(attributes.collect());
    Value::Map(vec![
        ("grid".into(), list([config.gridDimX, config.gridDimY, config.gridDimZ])),
        ("block".into(), list([config.blockDimX, config.blockDimY, config.blockDimZ])),
        ("shared".into(), Value::Unsigned(config.sharedMemBytes.into())),
        ("stream".into(), names.handle("stream", config.hStream as u64)),
        ("attributes".into(), attributes),
    ])
}

/// Returns a description of a launch's parameters, or "unknown" if their sizes are not known.
///
/// # Safety
/// `at` must be the address of an array of pointers to the kernel's parameters.
unsafe fn describe_parameters(at: u64, sizes: Option<Vec<usize>>, names: &Names) -> Value {
    let Some(sizes) = sizes else { return Value::text("unknown") };
    let values = (0..).zip(sizes).map(|(index, size)| {
        // SAFETY: the caller guarantees it (see "# Safety").
        let bytes = unsafe { memory::slice(memory::word(at + 8 * index, 8).unwrap_or(0), size) };
        describe_bytes(bytes, names)
    });
    Value::List(values.collect())
}

/// Returns a description of a launch's `extra` argument.
///
/// # Safety
/// `at` must be the address of a list of tags and values that ends with a zero.
unsafe fn describe_extra(at: u64, names: &Names) -> Value {
    // SAFETY: the caller guarantees it (see "# Safety").
    let entry = |index: u64| unsafe { memory::word(at + 8 * index, 8) }.unwrap_or(0);
    let (mut buffer, mut size) = (0, 0);
    for index in (0..8).step_by(2) {
        match entry(index) {
            1 => buffer = entry(index + 1),
            // SAFETY: the value of this tag is a pointer to the size.
            2 => size = unsafe { memory::word(entry(index + 1), 8) }.unwrap_or(0),
            _ => break,
        }
    }
    // SAFETY: the caller guarantees it (see "# Safety").
    describe_bytes(unsafe { memory::slice(buffer, size as usize) }, names)
}

/// Returns the bytes as hexadecimal digits, with the names of allocations in place of addresses. The result is one text
/// if it contains only digits or only one name, and a list otherwise.
fn describe_bytes(bytes: &[u8], names: &Names) -> Value {
    let mut parts: Vec<Value> = Vec::new();
    let mut plain = String::new();
    for chunk in bytes.chunks(8) {
        let address = <[u8; 8]>::try_from(chunk).map(u64::from_le_bytes).unwrap_or(0);
        if names.allocation_at(address).is_some() {
            parts.extend((!plain.is_empty()).then(|| Value::Text(std::mem::take(&mut plain))));
            parts.push(names.address(address));
        } else {
            plain += &to_hex(chunk);
        }
    }
    if !plain.is_empty() || parts.is_empty() {
        parts.push(Value::Text(plain));
    }
    if parts.len() == 1 { parts.remove(0) } else { Value::List(parts) }
}

/// Collects all names of addresses in a value.
fn addresses<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Text(text) if text.starts_with("memory#") => found.push(text),
        Value::List(values) => values.iter().for_each(|value| addresses(value, found)),
        _ => {}
    }
}

/// Returns the number of bytes of a parameter that has this description.
pub fn described_size(value: &Value) -> usize {
    match value {
        Value::Text(text) if text.starts_with("memory#") => 8,
        Value::Text(text) => text.len() / 2,
        list => list.list().iter().map(described_size).sum(),
    }
}
