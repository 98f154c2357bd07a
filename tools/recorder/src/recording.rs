//! Parses a recording that `record` wrote. Pure. Any bytes give either a recording or an error message of one sentence.

use crate::value::Value;
use std::collections::HashMap;

/// The text in place of contents that a later write replaced before the program could see them.
pub const COVERED: &str = "written over";

pub struct Recording {
    /// The version of the CUDA interface that the recorded driver reported.
    pub version: u32,
    pub records: Vec<Record>,
    /// The data of asynchronous writes to host memory, by the number of the record and the name of the parameter.
    pub arrived: HashMap<(usize, String), Value>,
    /// Whether the last line is incomplete, because the process ended while it was being written.
    pub torn: bool,
}

pub struct Record {
    /// The number of the record's line.
    pub number: usize,
    pub thread: String,
    pub function: String,
    pub inputs: Value,
    pub code: u32,
    pub outputs: Value,
    pub devices: Vec<Value>,
    pub arrived: Vec<Value>,
    /// Whether the driver made this call inside another call.
    pub nested: bool,
}

/// Parses the bytes of a recording.
///
/// # Errors
/// A message that names the problem and the line.
pub fn read(bytes: &[u8]) -> Result<Recording, String> {
    // Zero bytes follow the lines if the process ended before the reserved space was cut off.
    let written = bytes.iter().position(|byte| *byte == 0).map_or(bytes, |end| &bytes[..end]);
    let mut lines: Vec<&[u8]> = written.split(|byte| *byte == b'\n').collect();
    let torn = lines.pop().is_some_and(|rest| !rest.is_empty());
    let mut lines = lines.into_iter().zip(1..).map(|(line, number)| (number, line));
    let header = lines.next().ok_or("it is empty: the program made no driver call")?;
    let header = parse(header)?;
    if header.field("remotegpu trace") != Some(&Value::Unsigned(1)) {
        return Err("line 1 is not the header of a remotegpu trace of version 1".into());
    }
    let version = header.field("version").and_then(Value::word).unwrap_or(0) as u32;
    let records = lines.map(|line| record(line.0, &parse(line)?)).collect::<Result<Vec<_>, String>>()?;
    let mut arrived = HashMap::new();
    for told in records.iter().flat_map(|record| &record.arrived) {
        let of = told.field("of").and_then(Value::word).and_then(|of| usize::try_from(of).ok());
        if let (Some(of), Some(at), Some(data)) = (of, told.field("at").and_then(Value::as_text), told.field("data")) {
            arrived.insert((of, at.to_owned()), data.clone());
        }
    }
    Ok(Recording { version, records, arrived, torn })
}

fn parse((number, line): (usize, &[u8])) -> Result<Value, String> {
    let json: serde_json::Value =
        serde_json::from_slice(line).map_err(|error| format!("line {number} is not JSON: {error}"))?;
    Ok(Value::from(&json))
}

fn record(number: usize, line: &Value) -> Result<Record, String> {
    let missing = |name: &str| format!("line {number} is not a record: it has no `{name}`");
    let word = |name: &str| line.field(name).and_then(Value::word).ok_or_else(|| missing(name));
    let list = |name: &str| line.field(name).map_or(Vec::new(), |value| value.list().to_vec());
    Ok(Record {
        number,
        thread: line.field("t").and_then(Value::as_text).ok_or_else(|| missing("t"))?.to_owned(),
        function: line.field("f").and_then(Value::as_text).ok_or_else(|| missing("f"))?.to_owned(),
        inputs: line.field("in").cloned().ok_or_else(|| missing("in"))?,
        code: u32::try_from(word("code")?).map_err(|_| missing("code"))?,
        outputs: line.field("out").cloned().unwrap_or(Value::Null),
        devices: list("devices"),
        arrived: list("arrived"),
        nested: line.field("nested").is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = concat!(
        "{\"remotegpu trace\":1,\"contents\":0,\"version\":13000,\"driver\":\"x\",\"program\":[]}\n",
        "{\"t\":\"main\",\"f\":\"cuInit\",\"in\":{\"flags\":0},\"code\":0,\"devices\":[{\"uuid\":\"00\"}]}\n",
        "{\"t\":\"main\",\"f\":\"cuStreamSynchronize\",\"in\":{\"stream\":\"stream#1\"},\"code\":0,",
        "\"arrived\":[{\"of\":2,\"at\":\"to\",\"data\":{\"bytes\":1,\"hash\":\"x\",\"contents\":\"ff\"}}]}\n",
    );

    #[test]
    fn a_torn_line_and_kept_room_are_recognised() {
        let whole = read(GOOD.as_bytes()).unwrap();
        assert_eq!((whole.records.len(), whole.torn, whole.version), (2, false, 13000));
        assert_eq!(whole.arrived[&(2, "to".into())].contents(), Some(vec![255]));
        let kept = [GOOD.as_bytes(), &[0; 100]].concat();
        assert!(read(&kept).is_ok_and(|it| it.records.len() == 2 && !it.torn));
        for cut in 100..GOOD.len() {
            let torn = [&GOOD.as_bytes()[..cut], &[0; 9]].concat();
            let read = read(&torn).unwrap();
            assert_eq!(read.torn, !GOOD[..cut].ends_with('\n'), "{cut}");
            assert_eq!(read.records.len() + 1, GOOD[..cut].matches('\n').count(), "{cut}");
        }
    }

    #[test]
    fn what_is_no_recording_is_told_by_its_line() {
        let sentence = |bytes: &[u8]| read(bytes).err().unwrap();
        assert!(sentence(b"").contains("empty"));
        assert!(sentence(b"{}\n").contains("line 1"));
        assert!(sentence(GOOD.replace("\"code\":0,\"devices\"", "\"devices\"").as_bytes()).contains("line 2"));
        assert!(sentence(GOOD.replace("\"in\":{\"stream\"", "\"in\":{{\"stream\"").as_bytes()).contains("line 3"));
    }

    /// Mutates valid recordings, like the tests of every decoder of untrusted bytes. The mutations are the same in
    /// every run.
    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = 88_172_645_463_325_252u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below.max(1) as u64) as usize
        };
        const TOKENS: [&str; 10] = ["{", "}", "[", "\"", ":", "-1", "1e999", "null", "\n", "18446744073709551616"];
        for _ in 0..20_000 {
            let mut bytes = GOOD.as_bytes().to_vec();
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                match next(3) {
                    0 => bytes[at] = next(256) as u8,
                    1 => drop(bytes.splice(at..at, TOKENS[next(TOKENS.len())].bytes())),
                    _ => drop(bytes.drain(at..(at + next(40)).min(bytes.len()))),
                }
            }
            let _ = read(&bytes).map(|it| it.arrived.values().map(Value::contents).count());
        }
    }
}
