//! The token of an appliance without --tokens. The appliance writes the token to a file in its user's runtime folder,
//! named by address. `remotegpu/rpc/own_token.py` writes and finds the file in the same way.

use std::fs::{File, Metadata, read_dir, symlink_metadata};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use remotegpu_client::connect::address;

const LONGEST: u64 = 256;
/// Mode bits that give access to the group and to others.
const OTHERS: u32 = 0o077;

/// Returns the address to connect to, and the token, if an appliance of this user has one for `host` and `port`.
/// Replaces `localhost` by the address that the appliance listens on, because another user may listen on another
/// loopback address.
pub fn find(host: &str, port: u16, runtime: Option<String>) -> Option<(String, String)> {
    let uid = symlink_metadata("/proc/self").ok()?.uid();
    if host.contains('/') {
        return None;
    }
    let given = runtime.into_iter().chain([format!("/run/user/{uid}")]);
    let owned = given.map(PathBuf::from).filter(|folder| ours(folder, uid).is_some());
    let folders = owned
        .map(|folder| folder.join("remotegpu"))
        .chain(["/run", "/tmp"].map(|folder| format!("{folder}/remotegpu-{uid}").into()));
    let private = folders.filter(|folder| ours(folder, uid).is_some_and(|about| about.mode() & OTHERS == 0));
    private.flat_map(|folder| kept(&folder, host, port)).find_map(|(listens, path)| {
        let here = host == "localhost" && is_loopback(&listens);
        Some((if here { listens } else { host.to_owned() }, text(&path)?))
    })
}

/// Returns the possible token files, each with the address that its appliance listens on.
fn kept(folder: &Path, host: &str, port: u16) -> Vec<(String, PathBuf)> {
    let mut found = vec![(host.to_owned(), folder.join(address::joined(host, port)))];
    if is_loopback(host) {
        let names =
            read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        let listens = |name: String| match address::split(&name, None) {
            Some((host, its)) if its == port => Some((host.to_owned(), folder.join(&name))),
            _ => None,
        };
        found.extend(names.into_iter().filter_map(listens));
    }
    found
}

fn ours(folder: &Path, uid: u32) -> Option<Metadata> {
    symlink_metadata(folder).ok().filter(|about| about.is_dir() && about.uid() == uid)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
