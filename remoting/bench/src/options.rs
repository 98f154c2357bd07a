//! The command line.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Path, or a name for the loader.
    pub library: String,
    /// A tenth of the repetitions and of the bytes: seconds instead of a minute.
    pub quick: bool,
    pub job: Job,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Measure,
    Help,
    /// The other end of the raw TCP reference; started by this program.
    TcpPeer,
    /// As far as the first synchronised stream; started by this program to count round trips.
    InitialiseOnly,
    /// How fast kernels execute, instead of how far away the driver is.
    SoftwareGpu,
}

pub const HELP: &str = "usage: remotegpu-bench [softgpu] [--library PATH] [--quick]
Measures a CUDA driver (libcuda.so.1 by default; `remotegpu run -- remotegpu-bench` measures a share) and prints JSON:
  rtt_us                synchronise a stream after a one-byte memset     raw_tcp_rtt_us  64 bytes there and back on TCP
  launch_caller_us      what a launch costs its caller                   launches_per_s  until all have run
  launch_to_exec_us     launch and synchronise, less half a round trip   ten_launches_sync_us
  alloc_us              cuMemAlloc of 4 KiB                              event_query_us  record, then query until done
  small_d2h_us          4 bytes to the host
  h2d_gbps d2h_gbps     pageable memory, random bytes                    raw_tcp_gbps    the same size on TCP
  pinned_h2d_gbps pinned_d2h_gbps   asynchronous, from and to pinned memory
  init_ms               cuInit to the first synchronised stream          init_round_trips (null: not a remote driver)
With `softgpu`, instead: 10^9 lane-instructions per second of processor time, and the cores that took part, for four kernels";

impl Options {
    /// # Errors
    /// One line for a person.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { library: "libcuda.so.1".into(), quick: false, job: Job::Measure };
        while let Some(argument) = args.next() {
            match argument.as_str() {
                "--library" => options.library = args.next().ok_or("--library needs a path")?,
                "--quick" => options.quick = true,
                "--help" | "-h" => options.job = Job::Help,
                "--tcp-peer" => options.job = Job::TcpPeer,
                "softgpu" => options.job = Job::SoftwareGpu,
                "--initialise-only" => options.job = Job::InitialiseOnly,
                other => return Err(format!("unknown option {other}; see --help")),
            }
        }
        Ok(options)
    }

    /// Repetitions: all of them, or a tenth.
    pub fn repeat(&self, times: usize) -> usize {
        if self.quick { (times / 10).max(3) } else { times }
    }
}
