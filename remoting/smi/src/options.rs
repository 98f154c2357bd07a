//! The command line.

use crate::query::{self, Query};

#[derive(Debug, PartialEq)]
pub enum Output {
    Table,
    List,
    Gpus(Query),
    Processes(Query),
    /// Help and the like, which need no driver.
    Text(&'static str),
}

#[derive(Debug, PartialEq)]
pub struct Options {
    pub output: Output,
    /// Index, UUID or PCI bus id.
    pub device: Option<String>,
    pub repeat_seconds: Option<u64>,
}

const HELP: &str = "\
nvidia-smi of remotegpu: shows the GPUs that CUDA programs started here see.

    nvidia-smi                                  table of GPUs and processes
    nvidia-smi -L, --list-gpus                  one line per GPU
    nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]
    nvidia-smi --help-query-gpu                 the fields
Options: -i, --id=INDEX|UUID|BUS-ID   only this GPU;  -l, --loop=SECONDS   repeat
Settings of a GPU cannot be changed with this program.
";

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { output: Output::Table, device: None, repeat_seconds: None };
        let mut format = None;
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let (name, attached) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
                _ => (argument.clone(), None),
            };
            let mut value = || {
                let value = attached.clone().or_else(|| arguments.next());
                value.ok_or_else(|| format!("{name} needs a value."))
            };
            match name.as_str() {
                "-h" | "--help" => options.output = Output::Text(HELP),
                "--version" => {
                    options.output = Output::Text(concat!("nvidia-smi of remotegpu ", env!("CARGO_PKG_VERSION"), "\n"))
                }
                "--help-query-gpu" => options.output = Output::Text(query::FIELD_HELP),
                "-L" | "--list-gpus" => options.output = Output::List,
                "--query-gpu" => options.output = Output::Gpus(Query::of_gpus(&value()?)?),
                "--query-compute-apps" => options.output = Output::Processes(Query::of_processes(&value()?)?),
                "--format" => format = Some(value()?),
                "-i" | "--id" => options.device = Some(value()?),
                "-l" | "--loop" => {
                    let text = value()?;
                    let seconds = text.parse().ok().filter(|&seconds| seconds > 0);
                    options.repeat_seconds = Some(seconds.ok_or_else(|| format!("Not a number of seconds: {text}"))?);
                }
                _ => return Err(format!("Unknown option: {argument}. Try nvidia-smi --help.")),
            }
        }
        match (&mut options.output, format) {
            (Output::Gpus(query) | Output::Processes(query), Some(format)) => query.set_format(&format)?,
            (Output::Gpus(_) | Output::Processes(_), None) => {
                return Err("A query needs --format=csv[,noheader][,nounits].".to_owned());
            }
            (_, Some(_)) => return Err("--format goes with a query.".to_owned()),
            _ => {}
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn forms_that_scripts_use() {
        assert_eq!(parse("").unwrap().output, Output::Table);
        assert_eq!(parse("-L").unwrap().output, Output::List);
        let query = parse("--query-gpu=name,memory.total --format=csv,noheader,nounits -i 0").unwrap();
        assert_eq!(query.device.as_deref(), Some("0"));
        assert!(matches!(query.output, Output::Gpus(_)));
        assert_eq!(parse("--query-gpu name --format csv").unwrap(), parse("--query-gpu=name --format=csv").unwrap());
        assert_eq!(parse("-l 2").unwrap().repeat_seconds, Some(2));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "--reset",
            "--query-gpu=name",
            "--format=csv",
            "--query-gpu=name --format=xml",
            "--query-gpu=nonsense --format=csv",
            "--query-gpu",
            "-l 0",
            "-i",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
