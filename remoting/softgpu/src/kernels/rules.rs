//! Rules for a null GPU: the values that are in memory after a kernel that did not run. Some programs wait for a number
//! that a kernel counts. A rule writes this number when the kernel would run, also in a launch of a graph.

use crate::engine::{Fault, Kernel};
use crate::memory::allocations::Memory;
use crate::memory::arena::{self, SharedPage};
use crate::process::config::{RULES_ENV, TALLY_ENV};
use driverapi::errors::CUDA_ERROR_ILLEGAL_ADDRESS;
use std::fs::{self, OpenOptions};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Elements(u64),
    /// One item for each block of the launch.
    Blocks,
}

/// A rule, which is one line of the file: `KERNEL PARAMETER OFFSET TYPE VALUE [COUNT]`.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    line: usize,
    /// A pattern for the kernel's name. `*` matches any text.
    pattern: String,
    /// The index of the parameter that holds the address, counted from 0.
    parameter: usize,
    offset: u64,
    value: Vec<u8>,
    count: Count,
}

pub struct Rules {
    rules: Vec<Rule>,
    tally: Option<SharedPage>,
}

impl Rules {
    /// Reads a file of rules. If `tally` is a path, also opens the file that counts how often each rule is applied.
    ///
    /// # Errors
    /// A message that names the file and the reason.
    pub fn open(file: &str, tally: Option<&str>) -> Result<Rules, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{RULES_ENV}={file}: {error}"))?;
        let rules = parse(&text).map_err(|(line, why)| format!("{file}, line {line}: {why}"))?;
        if rules.len() > SharedPage::WORDS {
            return Err(format!("{file}: {} rules, of which at most {} can be", rules.len(), SharedPage::WORDS));
        }
        let show = |name: &str| {
            let told = |why: String| format!("{TALLY_ENV}={name}: {why}");
            let file = OpenOptions::new().read(true).write(true).open(name).map_err(|error| told(error.to_string()))?;
            SharedPage::show(file.as_fd()).map_err(|code| told(format!("CUDA error {code}")))
        };
        Ok(Rules { rules, tally: tally.map(show).transpose()? })
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Writes the values of all rules that match a kernel. The caller does this when the kernel would run.
    ///
    /// # Errors
    /// A fault if a rule's parameter does not point to enough memory.
    pub fn apply(&self, memory: &Memory, kernel: &Kernel, grid: [u32; 3], params: &[u8]) -> Result<(), Fault> {
        for (index, rule) in self.rules.iter().enumerate().filter(|(_, rule)| matches(&rule.pattern, &kernel.name)) {
            let (count, size) = (rule.count(grid), rule.value.len() as u64);
            let bytes = count.saturating_mul(size);
            let address = rule.address(kernel, params).filter(|at| memory.is_valid(*at, bytes));
            let address = address.ok_or_else(|| rule.fault(kernel, bytes))?;
            (0..count).for_each(|at| arena::write(address + at * size, &rule.value));
            if let Some(tally) = &self.tally {
                tally.word(index).fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Rule {
    fn count(&self, grid: [u32; 3]) -> u64 {
        match self.count {
            Count::Elements(count) => count,
            Count::Blocks => grid.iter().map(|&n| u64::from(n)).product(),
        }
    }

    fn address(&self, kernel: &Kernel, params: &[u8]) -> Option<u64> {
        let param = kernel.params.get(self.parameter).filter(|param| param.size == 8)?;
        let bytes = params.get(param.offset as usize..)?.first_chunk()?;
        u64::from_le_bytes(*bytes).checked_add(self.offset)
    }

    fn fault(&self, kernel: &Kernel, bytes: u64) -> Fault {
        let (line, parameter, offset, name) = (self.line, self.parameter, self.offset, &kernel.name);
        let message = format!(
            "rule of line {line}: parameter {parameter} of kernel '{name}', which has {}, plus {offset} is no address of \
             {bytes} bytes of memory",
            kernel.params.len()
        );
        Fault { code: CUDA_ERROR_ILLEGAL_ADDRESS, message }
    }
}

/// Parses rules, one for each line that is neither empty nor a comment. An error has the line's number and a message.
fn parse(text: &str) -> Result<Vec<Rule>, (usize, String)> {
    let lines = text.lines().zip(1..).map(|(line, number)| (line.trim(), number));
    lines
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, number)| rule(line, number).map_err(|why| (number, why)))
        .collect()
}

fn rule(text: &str, line: usize) -> Result<Rule, String> {
    const FORM: &str = "a rule is KERNEL PARAMETER OFFSET TYPE VALUE [COUNT]";
    let words: Vec<&str> = text.split_whitespace().collect();
    let (&[pattern, parameter, offset, kind, value], rest) = words.split_first_chunk().ok_or(FORM)?;
    let count = match rest {
        [] => Count::Elements(1),
        ["blocks"] => Count::Blocks,
        [count] => Count::Elements(number(count).filter(|&n| n > 0).ok_or_else(|| format!("'{count}' is no count"))?),
        _ => return Err(FORM.to_owned()),
    };
    let parameter = number(parameter).ok_or_else(|| format!("'{parameter}' is no number of a parameter"))?;
    let offset = number(offset).ok_or_else(|| format!("'{offset}' is no offset"))?;
    Ok(Rule { line, pattern: pattern.to_owned(), parameter, offset, value: bytes_of(kind, value)?, count })
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn bytes_of(kind: &str, value: &str) -> Result<Vec<u8>, String> {
    macro_rules! of {
        ($type:ty) => {
            number::<$type>(value).map(|value| value.to_le_bytes().to_vec())
        };
    }
    let bytes = match kind {
        "i8" => of!(i8),
        "u8" => of!(u8),
        "i16" => of!(i16),
        "u16" => of!(u16),
        "i32" => of!(i32),
        "u32" => of!(u32),
        "i64" => of!(i64),
        "u64" => of!(u64),
        "f32" => of!(f32),
        "f64" => of!(f64),
        _ => return Err(format!("'{kind}' is no type: i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 are")),
    };
    bytes.ok_or_else(|| format!("'{value}' is no {kind}"))
}

/// Whether a name matches a pattern.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).filter(|&at| name.is_char_boundary(at)).any(|at| matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, name, expected) in [
            ("add", "add", true),
            ("add", "adder", false),
            ("add*", "adder", true),
            ("*add", "fused_add", true),
            ("*_num_*_kernel", "_get_num_sampled_kernel", true),
            ("*_num_*_kernel", "_get_num_sampled_kernel_2", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        let rules = parse("# counts\n\n_count* 0 4 i32 -1 blocks\nfill 2 0 f32 0.5\n").unwrap();
        let second = Rule {
            line: 4,
            pattern: "fill".to_owned(),
            parameter: 2,
            offset: 0,
            value: 0.5f32.to_le_bytes().to_vec(),
            count: Count::Elements(1),
        };
        assert_eq!((rules[0].line, rules[0].offset, rules[0].count), (3, 4, Count::Blocks));
        assert_eq!((rules[0].count([2, 3, 1]), &rules[0].value), (6, &vec![255; 4]));
        assert_eq!(rules[1], second);
    }

    #[test]
    fn what_is_no_rule_is_told_with_its_line() {
        for (text, why) in [
            ("k 0 0 i32", "a rule is"),
            ("k 0 0 i32 1 2 3", "a rule is"),
            ("k x 0 i32 1", "'x' is no number of a parameter"),
            ("k 0 -4 i32 1", "'-4' is no offset"),
            ("k 0 0 int 1", "'int' is no type"),
            ("k 0 0 u8 256", "'256' is no u8"),
            ("k 0 0 u8 1 0", "'0' is no count"),
        ] {
            let (line, told) = parse(&format!("\n{text}")).unwrap_err();
            assert!(line == 2 && told.starts_with(why), "{text}: {told}");
        }
    }
}
