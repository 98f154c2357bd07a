//! Parses the command line.

use remotegpu_client::connect::Wish;

pub const HELP: &str = "\
Opens an offload session on one of this process's shares and passes its bytes. Started by programs, not by people:
standard input is a connected socket, standard output gets one line of JSON.

  --backend NAME          cuda, rocm, xpu or cpu; repeated: best first
  --environment NAME      that one and no other
  --share INDEX           only this one of REMOTEGPU_SHARES, counted from 0
  --package NAME=VERSION  what the program has: python, torch, numpy, cloudpickle
  --allow-skew            other minor versions of Python and torch will do
  --pid PID               of the program, for people
  --process-name TEXT     likewise";

pub enum Job {
    Help,
    Connect(Options),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    pub share: Option<usize>,
    pub wish: Wish,
}

impl Options {
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Job, String> {
        let mut options = Options::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (name, given) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            match name.as_str() {
                "--help" | "-h" => return Ok(Job::Help),
                "--allow-skew" => {
                    options.wish.allow_skew = true;
                    continue;
                }
                _ => {}
            }
            let value = given.or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value"))?;
            options.set(&name, value)?;
        }
        Ok(Job::Connect(options))
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "--backend" => self.wish.backends.push(value),
            "--environment" => self.wish.environment = value,
            "--share" => self.share = Some(number(name, &value)?),
            "--pid" => self.wish.pid = number(name, &value)?,
            "--process-name" => self.wish.process_name = value,
            "--package" => match value.split_once('=') {
                Some(("python", version)) => self.wish.python = version.to_owned(),
                Some((package, version)) => drop(self.wish.packages.insert(package.to_owned(), version.to_owned())),
                None => return Err(format!("{name} {value} is not NAME=VERSION")),
            },
            _ => return Err(format!("there is no option {name}; see --help")),
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} {value} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        match Options::parse(text.split_whitespace().map(str::to_owned))? {
            Job::Connect(options) => Ok(options),
            Job::Help => Err("help".into()),
        }
    }

    #[test]
    fn every_option_is_read_in_both_spellings() {
        let text = "--backend=rocm --backend cpu --environment mine --share 2 --package=python=3.12.4 \
                    --package torch=2.15.0+cpu --allow-skew --pid 7 --process-name python";
        let expected = Wish {
            environment: "mine".into(),
            backends: vec!["rocm".into(), "cpu".into()],
            python: "3.12.4".into(),
            packages: [("torch".into(), "2.15.0+cpu".into())].into(),
            allow_skew: true,
            pid: 7,
            process_name: "python".into(),
        };
        assert_eq!(parse(text), Ok(Options { share: Some(2), wish: expected }));
        assert_eq!(parse(""), Ok(Options::default()));
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, part) in [
            ("--share two", "--share two is no number"),
            ("--share -1", "no number"),
            ("--package torch", "NAME=VERSION"),
            ("--backend", "needs a value"),
            ("--backends cpu", "no option --backends"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
