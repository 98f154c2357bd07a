//! A tenant that always has kernels to launch. The measurement is the number of equal kernels that complete in a given
//! time.

use std::io::BufRead;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::options::Options;

/// A kernel that counts to `n`, which takes about 0.2 ms on the software GPU.
const WORK: &std::ffi::CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 n)
{
    .reg .pred %p<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [n];
    mov.u64 %d2, 0;
again:
    add.u64 %d2, %d2, 1;
    setp.lt.u64 %p1, %d2, %d1;
    @%p1 bra again;
    ret;
}
";
const COUNT: u64 = 20_000;
/// The number of kernels between two events, and the maximum number of such groups in flight.
const PIECE: u32 = 16;
const PIECES: usize = 8;
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Prints `ready`, waits for a line, launches kernels for the given time, and prints how many kernels completed.
///
/// # Errors
/// The name of the function that failed, with its code.
pub fn work(options: &Options, time: Duration) -> Result<(), String> {
    let driver = Driver::load(&options.library)?;
    let session = driver.start()?;
    let kernel = session.function(WORK, c"work")?;
    let launch = || kernel.launch_grid([1, 1, 1], [1, 1, 1], &[COUNT]);
    launch()?;
    session.synchronize()?;
    let events = (0..PIECES).map(|_| session.event()).collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).map_err(|error| error.to_string())?;
    let (started, mut given, mut completed) = (Instant::now(), 0, 0);
    while started.elapsed() < time {
        while given < completed + PIECES {
            (0..PIECE).try_for_each(|_| launch())?;
            events[given % PIECES].record()?;
            given += 1;
        }
        if events[completed % PIECES].query()? {
            completed += 1;
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    println!("{}", completed * PIECE as usize);
    session.synchronize()
}
