//! The driver's figures.

use std::time::Instant;

use crate::driver::{Driver, Session};
use crate::options::Options;
use crate::samples::{gigabits_per_second, median_seconds, noise};

type Figure = (&'static str, f64);

/// # Errors
/// If a function of the driver fails, or did not do what it reported as done.
pub fn all(options: &Options) -> Result<Vec<Figure>, String> {
    let driver = Driver::load(&options.library)?;
    let started = Instant::now();
    let session = driver.start()?;
    let mut figures = vec![("init_ms", started.elapsed().as_secs_f64() * 1e3)];
    let rtt_us = round_trip(&session, options)?;
    figures.push(("rtt_us", rtt_us));
    figures.extend(memory(&session, options)?);
    figures.extend(launches(&session, options, rtt_us)?);
    figures.extend(events(&session, options)?);
    figures.extend(copies(&session, options)?);
    Ok(figures)
}

/// An idle stream would be known to be idle: there must be something to wait for.
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
    Ok(vec![("alloc_us", alloc * 1e6), ("small_d2h_us", small * 1e6)])
}

fn launches(session: &Session, options: &Options, rtt_us: f64) -> Result<Vec<Figure>, String> {
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

    let many = options.repeat(100_000);
    let started = Instant::now();
    for _ in 0..many {
        launch()?;
    }
    let issued = started.elapsed().as_secs_f64();
    session.synchronize_context()?;
    let executed = started.elapsed().as_secs_f64();

    let one = median_seconds(options.repeat(2000), || {
        launch()?;
        session.synchronize()
    })?;
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
    Ok(vec![
        ("launch_caller_us", issued / many as f64 * 1e6),
        ("launches_per_s", many as f64 / executed),
        ("launch_to_exec_us", (one * 1e6 - rtt_us / 2.0).max(0.0)),
        ("ten_launches_sync_us", ten * 1e6),
    ])
}

fn events(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    let event = session.event()?;
    let seconds = median_seconds(options.repeat(2000), || {
        event.record()?;
        while !event.query()? {}
        Ok(())
    })?;
    Ok(vec![("event_query_us", seconds * 1e6)])
}

fn copies(session: &Session, options: &Options) -> Result<Vec<Figure>, String> {
    let wanted = if options.quick { 32 << 20 } else { 256 << 20 };
    // A small share gets small copies.
    let len = wanted.min(session.free_memory()? / 2);
    let address = session.alloc(len)?;
    let sent = noise(len);
    let gbps = |seconds| gigabits_per_second(len, seconds);
    // A copy from pageable memory may return before the bytes have arrived.
    let h2d = median_seconds(5, || {
        session.to_device(address, &sent)?;
        session.synchronize_context()
    })?;
    let mut got = vec![0; len];
    let d2h = median_seconds(5, || session.to_host(&mut got, address))?;
    if got != sent {
        return Err("the bytes that came back are not those that were sent".into());
    }
    let mut figures = vec![("h2d_gbps", gbps(h2d)), ("d2h_gbps", gbps(d2h)), ("copy_mib", (len >> 20) as f64)];

    let pinned = session.pinned(len)?;
    for (name, way) in [("pinned_d2h_gbps", true), ("pinned_h2d_gbps", false)] {
        let seconds = median_seconds(5, || {
            if way { pinned.to_host(address) } else { pinned.to_device(address) }?;
            session.synchronize()
        })?;
        figures.push((name, gbps(seconds)));
    }
    drop(pinned);
    session.free(address)?;
    Ok(figures)
}
