//! The environment of a command that uses a share, or software GPUs in its own process.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use remotegpu_client::connect::{Ca, Lease};
use serde_json::{Value, json};

use crate::native::Profile;

pub type Environment = Vec<(OsString, OsString)>;

/// Returns the command's PATH: first our folder, which contains `nvidia-smi`, then the inherited folders.
pub fn path(inherited: &Environment, dist: &Path) -> OsString {
    let rest = get(inherited, "PATH").map_or_else(|| OsString::from("/bin:/usr/bin"), OsStr::to_owned);
    joined(dist.join("bin").as_os_str(), &rest)
}

/// Returns the libraries to preload. They replace libraries that compile to machine code where the software GPU needs
/// PTX.
pub fn stand_ins(dist: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dist.join("native/stand-ins")).into_iter().flatten().flatten();
    let mut found: Vec<_> = files
        .map(|file| file.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so.")))
        .collect();
    found.sort();
    found
}

/// Returns the environment of a command that uses the leases: the path of the client's library, and the appliances'
/// addresses.
pub fn of_share(
    mut environment: Environment,
    dist: &Path,
    stand_ins: &[PathBuf],
    leases: &[&Lease],
    managed_mib: Option<u64>,
) -> Environment {
    let of = &mut environment;
    set(of, "REMOTEGPU_SHARES", shares(leases).into());
    if leases.iter().any(|lease| lease.software) {
        keep_ptx(of, dist, stand_ins);
    }
    suit_frameworks(of, dist);
    prepend(of, "LD_LIBRARY_PATH", dist.join("client").as_os_str());
    prepend(of, "PATH", dist.join("bin").as_os_str());
    if let Some(mib) = managed_mib {
        set(of, "REMOTEGPU_MANAGED_MIB", mib.to_string().into());
    }
    // The token authorises more than this lease, so the command does not get the token.
    environment.retain(|(name, _)| name != "REMOTEGPU_TOKEN" && name != "REMOTEGPU_TOKEN_FILE");
    environment
}

/// Returns the environment of a command with software GPUs in its own process. `memory` is their size, as of a share.
pub fn native(
    mut environment: Environment,
    dist: &Path,
    stand_ins: &[PathBuf],
    profile: Profile,
    (count, memory): (u32, u64),
) -> Environment {
    let of = &mut environment;
    if !profile.is_null() {
        keep_ptx(of, dist, stand_ins);
    }
    suit_frameworks(of, dist);
    set(of, "REMOTEGPU_SOFTGPU_PROFILE", profile.name().into());
    set(of, "REMOTEGPU_SOFTGPU_DEVICES", count.to_string().into());
    set(of, "REMOTEGPU_SOFTGPU_MEMORY", memory.to_string().into());
    prepend(of, "LD_LIBRARY_PATH", dist.join("native").as_os_str());
    prepend(of, "PATH", dist.join("bin").as_os_str());
    environment
}

/// Returns the differences of `environment` from `inherited` as JSON: the value of each changed variable, null for each
/// removed one. Each byte becomes one character (Latin-1), because names and values need not be UTF-8.
pub fn changes(inherited: &Environment, environment: &Environment) -> Value {
    let text = |bytes: &OsString| bytes.as_bytes().iter().map(|&byte| char::from(byte)).collect::<String>();
    let gone = inherited.iter().filter(|(name, _)| get(environment, name).is_none());
    let changed = environment.iter().filter(|(name, value)| get(inherited, name) != Some(value));
    gone.map(|(name, _)| (text(name), Value::Null))
        .chain(changed.map(|(name, value)| (text(name), text(value).into())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Makes frameworks keep PTX, which the software GPU executes, instead of machine code for a real GPU.
///
/// numba and cuda.core link with the driver if they cannot use nvJitLink. A preloaded library of that name hides the
/// real one, which they would otherwise load from their own folder. Our library exports none of its functions.
fn keep_ptx(of: &mut Environment, dist: &Path, stand_ins: &[PathBuf]) {
    let ptxas = dist.join("native/ptxas");
    set_default(of, "CUPY_COMPILE_WITH_PTX", "1".as_ref());
    set_default(of, "TRITON_PTXAS_PATH", ptxas.as_os_str());
    set_default(of, "TRITON_PTXAS_BLACKWELL_PATH", ptxas.as_os_str());
    // Torch caches the output of NVRTC on disk under a key for machine code. On the software GPU that output is PTX.
    set_default(of, "USE_PYTORCH_KERNEL_CACHE", "0".as_ref());
    for library in stand_ins {
        prepend(of, "LD_PRELOAD", library.as_os_str());
    }
}

/// Sets the variables that docs/frameworks.md lists: for NCCL ranks, and for JAX, which searches for GPUs.
fn suit_frameworks(of: &mut Environment, dist: &Path) {
    set_default(of, "NCCL_P2P_LEVEL", "SYS".as_ref());
    set_default(of, "NCCL_RUNTIME_CONNECT", "0".as_ref());
    // Our client identifies by its name the thread that serves ranks without access to each other's memory.
    set_default(of, "NCCL_SET_THREAD_NAME", "1".as_ref());
    let frameworks = dist.join("frameworks").into_os_string();
    let modules = match get(of, "PYTHONPATH") {
        Some(paths) if !paths.is_empty() => joined(paths, &frameworks),
        _ => frameworks,
    };
    set(of, "PYTHONPATH", modules);
}

fn shares(leases: &[&Lease]) -> String {
    let share = |lease: &&Lease| {
        let share = &lease.share;
        let ca = share.ca.as_ref().and_then(|ca| match ca {
            // Make the path absolute, because the command may change its working directory.
            Ca::File(file) => Some(Path::new(file).canonicalize().unwrap_or_else(|_| file.into())),
            Ca::Pem(_) => None,
        });
        json!({
            "endpoint": share.endpoint,
            "lease_id": share.lease_id,
            "lease_secret": share.lease_secret,
            "ca": ca.map(|file| file.to_string_lossy().into_owned()),
            "server_name": share.server_name,
            "asking": null,
        })
    };
    Value::from(leases.iter().map(share).collect::<Vec<_>>()).to_string()
}

fn get(environment: &Environment, name: impl AsRef<OsStr>) -> Option<&OsStr> {
    let name = name.as_ref();
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
}

fn set(environment: &mut Environment, name: &str, value: OsString) {
    match environment.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = value,
        None => environment.push((name.into(), value)),
    }
}

fn set_default(environment: &mut Environment, name: &str, value: &OsStr) {
    if get(environment, name).is_none() {
        set(environment, name, value.to_owned());
    }
}

fn prepend(environment: &mut Environment, name: &str, path: &OsStr) {
    let rest = get(environment, name).unwrap_or_default();
    let value = if rest.is_empty() { path.to_owned() } else { joined(path, rest) };
    set(environment, name, value);
}

fn joined(first: &OsStr, rest: &OsStr) -> OsString {
    let mut value = first.to_owned();
    value.push(":");
    value.push(rest);
    value
}
