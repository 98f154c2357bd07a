//! Parses the command line.

use std::net::SocketAddr;
use std::time::Duration;

use crate::samples::Repeat;
use crate::tcp::Address;

#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The path of the library, or a name for the loader.
    pub library: String,
    /// Whether to use a tenth of the repetitions and bytes, which takes seconds instead of a minute.
    pub quick: bool,
    /// The address of a running peer. With `None` this program starts one.
    pub reference: Option<Address>,
    pub job: Job,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Job {
    Measure,
    Help,
    /// Measures the speed of kernels, instead of the latency of the driver.
    SoftwareGpu,
    /// Measures the limits of large copies.
    Bulk,
    /// Runs the other end of the raw TCP reference.
    TcpPeer(Address),
    /// Runs a proxy with this delay in each direction.
    DelayProxy(Duration, Vec<Route>),
    /// Measures how many kernels a tenant completes in this time.
    Backlog(Duration),
    /// Makes a few calls whose round trips are counted. This program starts it as a child process.
    Scenario(String),
}

/// A route of the proxy: connections to `listen` are forwarded to `target`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub listen: SocketAddr,
    pub target: SocketAddr,
}

pub const HELP: &str = "usage: remotegpu-bench [--library PATH] [--quick] [--reference IP:PORT | PATH]
Measures a CUDA driver (libcuda.so.1 by default; `remotegpu run -- remotegpu-bench` measures a share) and prints JSON.
Times are medians in microseconds, bandwidths 10^9 bits of random data per second, each with raw TCP before and after.
  rtt_us                synchronise a stream after a one-byte memset     raw_tcp_rtt_us  64 bytes there and back
  idle_sync_us          synchronise a stream on which nothing runs
  launch_caller_us      what a launch costs its caller, 100,000 in a row raw_tcp_message_us  128 bytes, one write each
  launch_total_us       ... until all have run (launches_per_s)          launch_client_cpu_us  processor time at this end
  launch_to_exec_us     a launch that nobody waits for, until its result lands here, less half a round trip
  ten_launches_sync_us  ten launches and a synchronise
  graph_caller_us       what the launch of a graph of 1,000 kernels costs its caller
  graph_beyond_frame_us ... in processor time, less a one-byte memset's in its place
  graph_sync_us         ... with a synchronise                           graph_eager_sync_us  the kernels one by one
  alloc_us              cuMemAlloc of 4 KiB                              small_d2h_us  4 bytes to the host
  event_query_us        record, then query until done
  h2d_gbps d2h_gbps     pageable memory                                  raw_tcp_put_gbps raw_tcp_get_gbps
  pinned_h2d_gbps pinned_d2h_gbps   asynchronous, from and to pinned memory
  init_ms               cuInit to the first synchronised stream, in a new process
  *_round_trips         how often the client waited for the appliance (null: not a remote driver)
Other jobs:
  remotegpu-bench softgpu [--library PATH] [--quick]
        10^9 lane-instructions per second of processor time, and the cores that took part, for four kernels
  remotegpu-bench bulk [--library PATH] [--quick]
        gigabytes per second, their ratio to memcpy, and this process' seconds of processor time per gigabyte, of
        memcpy, page faults, raw streams, and pageable and pinned copies of four sizes
  remotegpu-bench backlog SECONDS [--library PATH]
        prints `ready`, waits for a line, and prints how many kernels of 0.2 ms or so it got done in that time
  remotegpu-bench tcp-peer IP:PORT | PATH
        the other end of the raw TCP reference, for --reference on another machine, or of a Unix socket in its place;
        until its standard input ends
  remotegpu-bench delay-proxy MILLISECONDS LISTEN=TARGET...
        passes connections on, each byte that much later, at full bandwidth; until its standard input ends";

impl Options {
    /// Parses the arguments.
    ///
    /// # Errors
    /// A message of one line.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { library: "libcuda.so.1".into(), quick: false, reference: None, job: Job::Measure };
        while let Some(argument) = args.next() {
            match argument.as_str() {
                "--library" => options.library = args.next().ok_or("--library needs a path")?,
                "--quick" => options.quick = true,
                "--reference" => options.reference = Some(args.next().unwrap_or_default().parse()?),
                "--help" | "-h" => options.job = Job::Help,
                "softgpu" => options.job = Job::SoftwareGpu,
                "bulk" => options.job = Job::Bulk,
                "tcp-peer" => options.job = Job::TcpPeer(args.next().unwrap_or_default().parse()?),
                "delay-proxy" => {
                    let milliseconds = args.next().and_then(|text| text.parse::<f64>().ok());
                    let delay = milliseconds.and_then(|it| Duration::try_from_secs_f64(it / 1000.0).ok());
                    let delay = delay.ok_or("delay-proxy needs milliseconds")?;
                    let routes = args.by_ref().map(|text| route(&text)).collect::<Result<_, _>>()?;
                    options.job = Job::DelayProxy(delay, routes);
                }
                "backlog" => {
                    let seconds = args.next().and_then(|text| text.parse().ok());
                    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                    options.job = Job::Backlog(time.ok_or("backlog needs seconds")?);
                }
                "scenario" => options.job = Job::Scenario(args.next().ok_or("scenario needs a name")?),
                other => return Err(format!("unknown option {other}; see --help")),
            }
        }
        Ok(options)
    }

    /// Returns the number of repetitions: `times`, or a tenth with `--quick`.
    pub fn repeat(&self, times: usize) -> Repeat {
        if self.quick {
            Repeat { times: (times / 10).max(3), at_most: Duration::from_millis(200) }
        } else {
            Repeat { times, at_most: Duration::from_secs(2) }
        }
    }

    /// Returns the number of bytes of a large copy.
    pub fn bulk(&self) -> usize {
        if self.quick { 32 << 20 } else { 256 << 20 }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address; write IP:PORT"))
}

fn route(text: &str) -> Result<Route, String> {
    let (listen, target) = text.split_once('=').ok_or_else(|| format!("{text:?} is not LISTEN=TARGET"))?;
    Ok(Route { listen: address(listen)?, target: address(target)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_delay_has_its_routes() {
        let route =
            |listen: &str, target: &str| Route { listen: listen.parse().unwrap(), target: target.parse().unwrap() };
        let routes = vec![route("127.0.0.2:7070", "127.0.0.1:7070"), route("127.0.0.2:7071", "127.0.0.1:7071")];
        assert_eq!(
            parse("delay-proxy 5 127.0.0.2:7070=127.0.0.1:7070 127.0.0.2:7071=127.0.0.1:7071").unwrap().job,
            Job::DelayProxy(Duration::from_millis(5), routes)
        );
        assert_eq!(parse("delay-proxy 0.2").unwrap().job, Job::DelayProxy(Duration::from_micros(200), Vec::new()));
    }

    #[test]
    fn mistakes_are_told() {
        for wrong in [
            "backlog",
            "backlog -1",
            "delay-proxy soon",
            "delay-proxy -1",
            "delay-proxy 1 127.0.0.1:1",
            "tcp-peer here",
            "--reference",
            "x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
