//! Measurements of the driver.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::driver::{Driver, Session};
use crate::options::Options;
use crate::processor;
use crate::samples::{gigabits_per_second, median, median_seconds, noise};

/// The timeout for a result. After it the result counts as lost.
const LOST: Duration = Duration::from_secs(10);

type Figure = (String, Value);

fn figure(name: &str, value: f64) -> Figure {
    (name.to_owned(), value.into())
}

/// Measures all figures.
///
/// # Errors
/// If a function of the driver fails, or if work that it reported as complete was not done.
pub fn all(options: &Options) -> Result<Vec<Figure>, String> {
    let driver = Driver::load(&options.library)?;
    let session = driver.start()?;
    let rtt_us = round_trip(&session, options)?;
    let idle = median_seconds(options.repeat(5000), || session.synchronize())?;
    let mut figures = vec![figure("rtt_us", rtt_us), figure("idle_sync_us", idle * 1e6)];
    figures.extend(memory(&session, options)?);
    figures.extend(launches(&session, options)?);
    figures.push(lone_launch(&session, options, rtt_us)?);
    figures.extend(graphs(&session, options)?);
    figures.extend(events(&session, options)?);
    figures.extend(copies(&session, options)?);
    Ok(figures)
}

/// Measures a graph of many kernels: the caller's time for a launch, the difference to a command of one frame in the
/// same place, the time with a synchronise, and the time for the same kernels without a graph.
fn graphs(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    const KERNELS: usize = 1000;
    let kernel = session.kernel()?;
    let counter = session.alloc(4096)?;
    let filled = session.alloc(4096)?;
    session.to_device(counter, &[0; 4])?;
    let all = || (0..KERNELS).try_for_each(|_| kernel.launch(counter));
    let graph = session.graph(all)?;
    let (mut caller, mut launch, mut frame, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut one_by_one = 0;
    median_seconds(options.repeat(200), || {
        let (started, processor) = (Instant::now(), processor::seconds_of_this_thread());
        graph.launch()?;
        launch.push(processor::seconds_of_this_thread() - processor);
        caller.push(started.elapsed().as_secs_f64());
        session.synchronize()?;
        whole.push(started.elapsed().as_secs_f64());
        // This launch and the one above both follow a wait for such a graph, so caches are cold and the sender thread
        // sleeps. When the sender wakes up, it may run on the caller's processor. The comparison therefore uses
        // processor time.
        let processor = processor::seconds_of_this_thread();
        session.set_byte(filled)?;
        frame.push(processor::seconds_of_this_thread() - processor);
        graph.launch()?;
        session.synchronize()
    })?;
    let eager = median_seconds(options.repeat(200), || {
        one_by_one += 1;
        all()?;
        session.synchronize()
    })?;
    let mut counted = [0; 4];
    session.to_host(&mut counted, counter)?;
    session.free(counter)?;
    session.free(filled)?;
    let (expected, run) = ((2 * whole.len() + one_by_one) * KERNELS, u32::from_le_bytes(counted));
    if run as usize != expected {
        return Err(format!("{expected} kernels of graphs and others were launched, {run} have run"));
    }
    Ok(vec![
        figure("graph_caller_us", median(caller) * 1e6),
        figure("graph_beyond_frame_us", (median(launch) - median(frame)) * 1e6),
        figure("graph_sync_us", median(whole) * 1e6),
        figure("graph_eager_sync_us", eager * 1e6),
    ])
}

/// Measures a round trip: a memset and a synchronise. A driver may know that a stream without work is idle, so a
/// synchronise alone may need no round trip.
fn round_trip(session: &Session, options: &Options) -> Result<f64, String> {
    let address = session.alloc(4096)?;
    let seconds = median_seconds(options.repeat(5000), || {
        session.set_byte(address)?;
        session.synchronize()
    })?;
    session.free(address)?;
    Ok(seconds * 1e6)
}

fn memory(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    let mut addresses = Vec::new();
    let alloc = median_seconds(options.repeat(2000), || {
        addresses.push(session.alloc(4096)?);
        Ok(())
    })?;
    addresses.into_iter().try_for_each(|address| session.free(address))?;
    let address = session.alloc(4096)?;
    let mut word = [0; 4];
    let small = median_seconds(options.repeat(2000), || session.to_host(&mut word, address))?;
    session.free(address)?;
    Ok(vec![figure("alloc_us", alloc * 1e6), figure("small_d2h_us", small * 1e6)])
}

fn launches(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    let kernel = session.kernel()?;
    let counter = session.alloc(4096)?;
    session.to_device(counter, &[0; 4])?;
    let mut expected = 0u32;
    let mut launch = || {
        expected += 1;
        kernel.launch(counter)
    };
    launch()?;
    session.synchronize()?;

    let many = options.repeat(100_000).times;
    let (started, processor) = (Instant::now(), processor::seconds());
    for _ in 0..many {
        launch()?;
    }
    let issued = started.elapsed().as_secs_f64();
    session.synchronize_context()?;
    let executed = started.elapsed().as_secs_f64();
    let processor = processor::seconds() - processor;

    let ten = median_seconds(options.repeat(1000), || {
        for _ in 0..10 {
            launch()?;
        }
        session.synchronize()
    })?;
    let mut counted = [0; 4];
    session.to_host(&mut counted, counter)?;
    session.free(counter)?;
    if u32::from_le_bytes(counted) != expected {
        return Err(format!("{expected} kernels were launched, {} have run", u32::from_le_bytes(counted)));
    }
    let each_us = |seconds: f64| seconds / many as f64 * 1e6;
    Ok(vec![
        figure("launch_caller_us", each_us(issued)),
        figure("launch_total_us", each_us(executed)),
        figure("launch_client_cpu_us", each_us(processor)),
        figure("launches_per_s", many as f64 / executed),
        figure("ten_launches_sync_us", ten * 1e6),
    ])
}

/// Measures the time until a launch runs without any later call. Its result is read from page-locked memory.
fn lone_launch(session: &Session, options: &Options, rtt_us: f64) -> Result<Figure, String> {
    let kernel = session.kernel()?;
    let counter = session.alloc(4096)?;
    session.to_device(counter, &[0; 4])?;
    let result = session.pinned(4)?;
    let mut expected = 0;
    let seconds = median_seconds(options.repeat(1000), || {
        expected += 1;
        kernel.launch(counter)?;
        result.to_host(counter)?;
        let called = Instant::now();
        while result.word() != expected {
            if called.elapsed() > LOST {
                return Err("the result of a launch does not land before a call waits for it".into());
            }
            // Yield: if both ends share one processor, a busy wait would stop the other end.
            std::thread::yield_now();
        }
        Ok(())
    })?;
    drop(result);
    session.free(counter)?;
    Ok(figure("launch_to_exec_us", (seconds * 1e6 - rtt_us / 2.0).max(0.0)))
}

fn events(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    let event = session.event()?;
    let seconds = median_seconds(options.repeat(2000), || {
        event.record()?;
        while !event.query()? {}
        Ok(())
    })?;
    Ok(vec![figure("event_query_us", seconds * 1e6)])
}

fn copies(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    // A small share gets smaller copies.
    let len = options.bulk().min(session.free_memory()? / 2);
    let address = session.alloc(len)?;
    let sent = noise(len);
    let gbps = |seconds| gigabits_per_second(len, seconds);
    // A copy from pageable memory may return before the bytes have arrived.
    let h2d = median_seconds(options.repeat(5), || {
        session.to_device(address, &sent)?;
        session.synchronize_context()
    })?;
    let mut got = vec![0; len];
    let d2h = median_seconds(options.repeat(5), || session.to_host(&mut got, address))?;
    if got != sent {
        return Err("the bytes that came back are not those that were sent".into());
    }
    let mut figures = vec![figure("h2d_gbps", gbps(h2d)), figure("d2h_gbps", gbps(d2h))];
    figures.push(figure("copy_mib", (len >> 20) as f64));

    let pinned = session.pinned(len)?;
    for (name, way) in [("pinned_d2h_gbps", true), ("pinned_h2d_gbps", false)] {
        let seconds = median_seconds(options.repeat(5), || {
            if way { pinned.to_host(address) } else { pinned.to_device(address) }?;
            session.synchronize()
        })?;
        figures.push(figure(name, gbps(seconds)));
    }
    drop(pinned);
    session.free(address)?;
    Ok(figures)
}
