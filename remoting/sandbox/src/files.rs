//! Landlock: which files a process may read and write, of any owner, and no way into processes outside of it.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// What may be written to.
#[derive(Debug, Clone, Copy)]
pub enum Writable<'a> {
    /// What is not hidden, but of `/proc`, where the files of every process of our user lie, its own alone.
    AllButHidden,
    /// Device nodes that are there now, but none of the file systems in memory beside them; and `/proc/self`.
    Devices,
    /// What lies beneath these paths. Such files may be read too.
    Beneath(&'a [PathBuf]),
}

/// File systems that a program fills without a disk.
const IN_MEMORY: [&str; 3] = ["/dev/shm", "/dev/mqueue", "/dev/hugepages"];

/// Does this kernel keep processes of one user from looking into each other if they ask for it?
#[must_use]
pub fn has_landlock() -> bool {
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    required.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
}

/// For the calling thread and what it starts, for good: reads what lies beneath the `readable` paths, but the `hidden`
/// files and what is beneath them, and has no rights over processes outside, whatever their uid is. An older kernel
/// enforces what it knows.
///
/// `network`: whether TCP stays possible. False is returned if this kernel has no Landlock.
///
/// # Errors
/// If the system refuses.
pub fn confine(
    readable: &[PathBuf],
    hidden: &[PathBuf],
    writable: Writable<'_>,
    network: bool,
) -> Result<bool, RulesetError> {
    let read = BitFlags::from(AccessFs::ReadFile);
    let change = AccessFs::from_write(ABI::V3);
    let mut ruleset = Ruleset::default().handle_access(read)?.scope(Scope::Signal | Scope::AbstractUnixSocket)?;
    ruleset = ruleset.handle_access(change)?;
    if !network {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    let hidden: Vec<_> = hidden.iter().map(|path| real(path)).collect();
    let mut allowed: Vec<_> = match writable {
        Writable::Beneath(paths) => paths.iter().map(|path| (path.clone(), read | change)).collect(),
        Writable::AllButHidden => {
            let closed = [&hidden[..], &["/proc".into()][..]].concat();
            changed("/", &closed).into_iter().map(|path| (path, read | change)).collect()
        }
        Writable::Devices => {
            let closed = [&hidden[..], &IN_MEMORY.map(PathBuf::from)[..]].concat();
            changed("/dev", &closed).into_iter().map(|path| (path, read | change)).collect()
        }
    };
    let mut covered = Vec::new();
    for path in readable {
        beside(&real(path), &hidden, &mut covered);
    }
    allowed.extend(covered.into_iter().map(|path| (path, read)));
    // What cannot be opened went away, or we could not read it anyway.
    let rules = allowed.iter().filter_map(|(path, rights)| Some(PathBeneath::new(PathFd::new(path).ok()?, *rights)));
    let status = ruleset.create()?.add_rules(rules.map(Ok::<_, RulesetError>))?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// What lies beneath a path, but the closed ones; and what is a process's own.
fn changed(path: &str, closed: &[PathBuf]) -> Vec<PathBuf> {
    let mut covered = vec!["/proc/self".into()];
    beside(Path::new(path), closed, &mut covered);
    covered
}

/// Without links, as far as the path exists: what is made later beneath a hidden folder's place is hidden too.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    })
}

/// The fewest paths that together cover all but the hidden ones. Links are left out: what they point to is covered where it
/// really lies.
fn beside(path: &Path, hidden: &[PathBuf], readable: &mut Vec<PathBuf>) {
    if !hidden.iter().any(|one| one.starts_with(path)) {
        readable.push(path.to_owned());
    } else if !hidden.iter().any(|one| one == path) {
        for entry in path.read_dir().into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                beside(&entry.path(), hidden, readable);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_hidden_files_are_covered() {
        let root = std::env::temp_dir().join(format!("remotegpu-beside-{}", std::process::id()));
        for folder in ["open/deep", "part/data-1"] {
            std::fs::create_dir_all(root.join(folder)).expect("folder");
        }
        for file in ["part/data-1/crt", "part/data-1/key", "open/deep/file"] {
            std::fs::write(root.join(file), "").expect("file");
        }
        std::os::unix::fs::symlink("data-1", root.join("part/data")).expect("link");
        let root = root.canonicalize().expect("root");
        let covered = |hidden: PathBuf| {
            let mut readable = Vec::new();
            beside(&root, &[real(&hidden)], &mut readable);
            readable.sort();
            readable
        };
        let through_link = covered(root.join("part/data/key"));
        let not_there_yet = covered(root.join("part/data/later"));
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(through_link, [root.join("open"), root.join("part/data-1/crt")]);
        let files = ["part/data-1/crt", "part/data-1/key"].map(|file| root.join(file));
        assert_eq!(not_there_yet, [root.join("open"), files[0].clone(), files[1].clone()]);
    }
}
