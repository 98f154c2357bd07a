//! What the environment of a command says so that it uses the share: as `remotegpu.cli.run.command` and `remotegpu.frameworks`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use remotegpu_client::connect::{Ca, Lease};

pub type Environment = Vec<(OsString, OsString)>;

/// Where the command is looked for: ours first, as `nvidia-smi` is.
pub fn path(inherited: &Environment, dist: &Path) -> OsString {
    let rest = get(inherited, "PATH").map_or_else(|| OsString::from("/bin:/usr/bin"), OsStr::to_owned);
    joined(dist.join("bin").as_os_str(), &rest)
}

/// What is preloaded in place of libraries that would make machine code where PTX is needed.
pub fn stand_ins(dist: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dist.join("native/stand-ins")).into_iter().flatten().flatten();
    let mut found: Vec<_> = files
        .map(|file| file.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so.")))
        .collect();
    found.sort();
    found
}

pub fn of_share(
    mut environment: Environment,
    dist: &Path,
    stand_ins: &[PathBuf],
    lease: &Lease,
    managed_mib: Option<u64>,
) -> Environment {
    let of = &mut environment;
    set(of, "REMOTEGPU_SHARES", shares(lease).into());
    if lease.software {
        // Frameworks keep PTX, which the software GPU executes.
        let ptxas = dist.join("native/ptxas");
        set_default(of, "CUPY_COMPILE_WITH_PTX", "1".as_ref());
        set_default(of, "TRITON_PTXAS_PATH", ptxas.as_os_str());
        set_default(of, "TRITON_PTXAS_BLACKWELL_PATH", ptxas.as_os_str());
        set_default(of, "USE_PYTORCH_KERNEL_CACHE", "0".as_ref());
        for library in stand_ins {
            prepend(of, "LD_PRELOAD", library.as_os_str());
        }
    }
    set_default(of, "NCCL_P2P_LEVEL", "SYS".as_ref());
    set_default(of, "NCCL_RUNTIME_CONNECT", "0".as_ref());
    set_default(of, "NCCL_SET_THREAD_NAME", "1".as_ref());
    let frameworks = dist.join("frameworks").into_os_string();
    let modules = match get(of, "PYTHONPATH") {
        Some(paths) if !paths.is_empty() => joined(paths, &frameworks),
        _ => frameworks,
    };
    set(of, "PYTHONPATH", modules);
    prepend(of, "LD_LIBRARY_PATH", dist.join("client").as_os_str());
    prepend(of, "PATH", dist.join("bin").as_os_str());
    if let Some(mib) = managed_mib {
        set(of, "REMOTEGPU_MANAGED_MIB", mib.to_string().into());
    }
    // The token opens more than this lease; the command needs only the lease.
    environment.retain(|(name, _)| name != "REMOTEGPU_TOKEN" && name != "REMOTEGPU_TOKEN_FILE");
    environment
}

fn shares(lease: &Lease) -> String {
    let share = &lease.share;
    let ca = share.ca.as_ref().and_then(|ca| match ca {
        // The command may change its folder.
        Ca::File(file) => Some(Path::new(file).canonicalize().unwrap_or_else(|_| file.into())),
        Ca::Pem(_) => None,
    });
    serde_json::json!([{
        "endpoint": share.endpoint,
        "lease_id": share.lease_id,
        "lease_secret": share.lease_secret,
        "ca": ca.map(|file| file.to_string_lossy().into_owned()),
        "server_name": share.server_name,
        "asking": null,
    }])
    .to_string()
}

fn get<'a>(environment: &'a Environment, name: &str) -> Option<&'a OsStr> {
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
