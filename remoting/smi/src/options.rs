//! Parses the command line.

use crate::details::SECTIONS;
use crate::fields::Subject;
use crate::monitor::Monitor;
use crate::query::Query;
use std::iter::Peekable;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, PartialEq)]
pub enum Output {
    Table,
    List,
    Fields(Query),
    /// All values, or those of the named sections.
    Details {
        xml: bool,
        sections: Vec<&'static str>,
    },
    Monitor(Monitor),
    Topology,
    /// A text that needs no driver: help or version.
    Text(String),
}

#[derive(Debug, PartialEq)]
pub struct Options {
    pub output: Output,
    /// Indices, UUIDs or PCI bus ids, separated by commas.
    pub device: Option<String>,
    /// The pause between two outputs. `None` prints once.
    pub repeat: Option<Duration>,
    /// The number of outputs. `None` repeats without end.
    pub count: Option<u64>,
    /// The file to write to. `None` is standard output.
    pub file: Option<PathBuf>,
}

const HELP: &str = "\
nvidia-smi of remotegpu: shows the GPUs that CUDA programs started here see.

    nvidia-smi                                  table of GPUs and processes
    nvidia-smi -L, --list-gpus                  one line per GPU
    nvidia-smi -q, --query [-x] [-d SECTIONS]   all values, as XML (-x, --xml-format), of SECTIONS (-d, --display)
    nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=FIELDS ...  the same of processes; also -accounted-apps, -retired-pages,
                                                -remapped-rows, -supported-clocks
    nvidia-smi --help-query-gpu                 the fields; the same for each query
    nvidia-smi dmon [-s pucvmet] [-d SECONDS] [-c COUNT]   a line per GPU, each second
    nvidia-smi pmon [-s um] [-d SECONDS] [-c COUNT]        a line per process
    nvidia-smi topo -m                          how GPUs reach each other
Options: -i, --id=INDEX|UUID|BUS-ID[,...]  only these GPUs;  -f, --filename=FILE  write to FILE
         -l, --loop[=SECONDS], -lms, --loop-ms=MILLISECONDS   repeat
Settings of a GPU cannot be changed with this program.
";

/// The interval of `--loop` without a value, as in NVIDIA's program.
const LOOP: Duration = Duration::from_secs(5);

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut words = Words { arguments: arguments.peekable(), attached: None };
        let command = words.arguments.next_if(|word| ["dmon", "pmon", "topo"].contains(&word.as_str()));
        match command.as_deref() {
            Some("topo") => Self::topology(words),
            Some(command) => Self::monitor(command == "pmon", words),
            None => Self::plain(words),
        }
    }

    fn new(output: Output) -> Self {
        Self { output, device: None, repeat: None, count: None, file: None }
    }

    fn topology(mut words: Words<impl Iterator<Item = String>>) -> Result<Self, String> {
        let mut options = Self::new(Output::Text(HELP.to_owned()));
        while let Some(name) = words.next() {
            match name.as_str() {
                "-m" | "--matrix" => options.output = Output::Topology,
                "-i" | "--id" => options.device = Some(words.value(&name)?),
                "-h" | "--help" => {}
                _ => return Err(unknown(&name)),
            }
        }
        Ok(options)
    }

    fn monitor(processes: bool, mut words: Words<impl Iterator<Item = String>>) -> Result<Self, String> {
        let mut monitor = if processes { Monitor::of_processes() } else { Monitor::of_gpus() };
        let mut options = Self::new(Output::Table);
        options.repeat = Some(Duration::from_secs(1));
        while let Some(name) = words.next() {
            match name.as_str() {
                "-h" | "--help" => return Ok(Self::new(Output::Text(HELP.to_owned()))),
                "-i" | "--id" => options.device = Some(words.value(&name)?),
                "-s" | "--select" => monitor.set_metrics(&words.value(&name)?)?,
                "-d" | "--delay" => options.repeat = Some(Duration::from_secs(words.number(&name)?)),
                "-c" | "--count" => options.count = Some(words.number(&name)?),
                "-f" | "--filename" => options.file = Some(words.value(&name)?.into()),
                _ => return Err(unknown(&name)),
            }
        }
        options.output = Output::Monitor(monitor);
        Ok(options)
    }

    fn plain(mut words: Words<impl Iterator<Item = String>>) -> Result<Self, String> {
        let mut options = Self::new(Output::Table);
        let (mut format, mut xml, mut sections) = (None, false, None);
        while let Some(name) = words.next() {
            match name.as_str() {
                "-h" | "--help" => options.output = Output::Text(HELP.to_owned()),
                "--version" => {
                    let version = concat!("nvidia-smi of remotegpu ", env!("CARGO_PKG_VERSION"), "\n");
                    options.output = Output::Text(version.to_owned());
                }
                "-L" | "--list-gpus" => options.output = Output::List,
                "-q" | "--query" => options.output = Output::Details { xml: false, sections: Vec::new() },
                "-x" | "--xml-format" => xml = true,
                "-d" | "--display" => sections = Some(chosen_sections(&words.value(&name)?)?),
                "--format" => format = Some(words.value(&name)?),
                "-i" | "--id" => options.device = Some(words.value(&name)?),
                "-f" | "--filename" => options.file = Some(words.value(&name)?.into()),
                "-l" | "--loop" if words.is_last_of_its_own() => options.repeat = Some(LOOP),
                "-l" | "--loop" => options.repeat = Some(Duration::from_secs(words.number(&name)?)),
                "-lms" | "--loop-ms" => options.repeat = Some(Duration::from_millis(words.number(&name)?)),
                _ => match (Subject::of(&name, "--query-"), Subject::of(&name, "--help-query-")) {
                    (Some(subject), _) => options.output = Output::Fields(Query::new(subject, &words.value(&name)?)?),
                    (_, Some(subject)) => options.output = Output::Text(subject.help()),
                    _ => return Err(unknown(&name)),
                },
            }
        }
        match (&mut options.output, xml || sections.is_some()) {
            (Output::Details { xml: as_xml, sections: shown }, _) => {
                (*as_xml, *shown) = (xml, sections.unwrap_or_default())
            }
            (_, true) => return Err("-x and -d go with -q.".to_owned()),
            _ => {}
        }
        match (&mut options.output, format) {
            (Output::Fields(query), Some(format)) => query.set_format(&format)?,
            (Output::Fields(_), None) => {
                return Err("A query needs --format=csv[,noheader][,nounits].".to_owned());
            }
            (_, Some(_)) => return Err("--format goes with a query.".to_owned()),
            _ => {}
        }
        Ok(options)
    }
}

fn unknown(name: &str) -> String {
    format!("Unknown option: {name}. Try nvidia-smi --help.")
}

fn chosen_sections(names: &str) -> Result<Vec<&'static str>, String> {
    let section = |name: &str| {
        let known = SECTIONS.iter().find(|known| known.eq_ignore_ascii_case(name.trim()));
        known.copied().ok_or_else(|| format!("Section {name:?} is not known: {}.", SECTIONS.join(", ")))
    };
    names.split(',').map(section).collect()
}

/// The words of a command line. The value of an option is the next word, or follows `=`.
struct Words<I: Iterator<Item = String>> {
    arguments: Peekable<I>,
    attached: Option<String>,
}

impl<I: Iterator<Item = String>> Words<I> {
    fn next(&mut self) -> Option<String> {
        let word = self.arguments.next()?;
        match word.split_once('=') {
            Some((name, value)) if name.starts_with('-') => {
                self.attached = Some(value.to_owned());
                Some(name.to_owned())
            }
            _ => {
                self.attached = None;
                Some(word)
            }
        }
    }

    fn value(&mut self, name: &str) -> Result<String, String> {
        let value = self.attached.take().or_else(|| self.arguments.next());
        value.ok_or_else(|| format!("{name} needs a value."))
    }

    fn number(&mut self, name: &str) -> Result<u64, String> {
        let text = self.value(name)?;
        let number = text.parse().ok().filter(|&number| number > 0);
        number.ok_or_else(|| format!("{name} needs a whole number of at least 1, not {text:?}."))
    }

    fn is_last_of_its_own(&mut self) -> bool {
        self.attached.is_none() && self.arguments.peek().is_none_or(|next| next.starts_with('-'))
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
        assert!(matches!(query.output, Output::Fields(_)));
        assert_eq!(parse("--query-gpu name --format csv").unwrap(), parse("--query-gpu=name --format=csv").unwrap());
        assert_eq!(parse("-l 2").unwrap().repeat, Some(Duration::from_secs(2)));
        assert_eq!(parse("-lms 500").unwrap().repeat, Some(Duration::from_millis(500)));
        assert_eq!(parse("-l -L").unwrap().repeat, Some(LOOP));
        let all = Output::Details { xml: true, sections: vec!["MEMORY", "PIDS"] };
        assert_eq!(parse("-x -q -d memory,PIDS").unwrap().output, all);
        let monitor = parse("dmon -c 3 -s um -f log").unwrap();
        assert_eq!((monitor.count, monitor.repeat), (Some(3), Some(Duration::from_secs(1))));
        assert_eq!(parse("topo -m").unwrap().output, Output::Topology);
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
            "-x",
            "-d MEMORY",
            "-q -d COLOUR",
            "dmon -s x",
            "pmon -s p",
            "dmon -q",
            "topo -x",
            "-lms 0.5",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
