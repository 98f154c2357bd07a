//! Landlock rules: the files that a process may read and write, independent of their owner, and no access to processes
//! outside of the sandbox.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that a process may write.
#[derive(Debug, Clone, Copy)]
pub enum Writable<'a> {
    /// All files that are not hidden. In `/proc`, which has files of every process of the user, only the process's own.
    AllButHidden,
    /// Device nodes that exist at the time of the call, and `/proc/self`. The in-memory file systems in `/dev` are
    /// excluded.
    Devices,
    /// Files beneath these paths, which may also be read.
    Beneath(&'a [PathBuf]),
}

/// File systems that use memory instead of a disk.
const IN_MEMORY: [&str; 3] = ["/dev/shm", "/dev/mqueue", "/dev/hugepages"];

/// Whether this kernel supports Landlock, which isolates processes of the same user from each other.
#[must_use]
pub fn has_landlock() -> bool {
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    required.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
}

/// Confines the calling thread and its children permanently. They can read files beneath the `readable` paths, except
/// `hidden` paths and all files beneath those. They have no rights over processes outside of the sandbox, even with the
/// same uid. An older kernel enforces only the rules that it supports.
///
/// `network` is whether TCP stays allowed. Returns false if this kernel has no Landlock.
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
    let allowed = allowed(readable, hidden, writable);
    // A path that cannot be opened does not exist any more, or was not readable before.
    let rules = allowed.iter().filter_map(|(path, rights)| Some(PathBeneath::new(PathFd::new(path).ok()?, *rights)));
    let status = ruleset.create()?.add_rules(rules.map(Ok::<_, RulesetError>))?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Returns what a program may read that has only `own` and libraries left to open: both, and of the root's entries those
/// that lead to no hidden file. So a crowded folder with a hidden file in it needs no rule for each of its entries.
#[must_use]
pub fn libraries_and(own: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let hidden: Vec<_> = hidden.iter().map(|path| real(path)).collect();
    let entries = Path::new("/").read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut open: Vec<_> = entries.filter(|path| !hidden.iter().any(|one| one.starts_with(real(path)))).collect();
    open.extend(["/usr", "/lib", "/lib64", "/etc/ld.so.cache"].map(PathBuf::from));
    open.push(own.to_owned());
    open
}

/// The rights at each path, and beneath it. Each rule costs a start some microseconds, and a crowded folder with a hidden
/// file in it needs as many as it has entries, so no path has two.
fn allowed(readable: &[PathBuf], hidden: &[PathBuf], writable: Writable<'_>) -> BTreeMap<PathBuf, BitFlags<AccessFs>> {
    let read = BitFlags::from(AccessFs::ReadFile);
    let both = read | AccessFs::from_write(ABI::V3);
    let hidden: Vec<_> = hidden.iter().map(|path| real(path)).collect();
    let open = match writable {
        Writable::Beneath(paths) => paths.to_vec(),
        Writable::AllButHidden => changed("/", &[&hidden[..], &["/proc".into()][..]].concat()),
        Writable::Devices => changed("/dev", &[&hidden[..], &IN_MEMORY.map(PathBuf::from)[..]].concat()),
    };
    let mut allowed: BTreeMap<_, _> = open.into_iter().map(|path| (path, both)).collect();
    let mut covered = Vec::new();
    for path in readable {
        beside(&real(path), &hidden, &mut covered);
    }
    for path in covered {
        allowed.entry(path).or_insert(read);
    }
    allowed
}

/// Returns the paths that may be changed: all beneath `path` except the closed ones, and the process's own files in
/// `/proc`.
fn changed(path: &str, closed: &[PathBuf]) -> Vec<PathBuf> {
    let mut covered = vec!["/proc/self".into()];
    beside(Path::new(path), closed, &mut covered);
    covered
}

/// Resolves the links of the existing part of a path. A file that is created later beneath a hidden folder is hidden,
/// too.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    })
}

/// Adds the minimal set of paths that covers all files beneath `path` except the hidden ones. Links are skipped,
/// because their targets are covered at their real paths. Adds nothing if `path` is itself hidden.
fn beside(path: &Path, hidden: &[PathBuf], readable: &mut Vec<PathBuf>) {
    if hidden.iter().any(|one| path.starts_with(one)) {
        return;
    }
    if !hidden.iter().any(|one| one.starts_with(path)) {
        readable.push(path.to_owned());
    } else {
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
    fn what_may_be_changed_has_one_rule_and_may_be_read() {
        let root = std::env::temp_dir().join(format!("remotegpu-rules-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("folder");
        for number in 0..100 {
            std::fs::write(root.join(number.to_string()), "").expect("file");
        }
        let root = root.canonicalize().expect("root");
        let rules = allowed(&["/".into()], &[root.join("7")], Writable::AllButHidden);
        std::fs::remove_dir_all(&root).expect("removed");
        let read = BitFlags::from(AccessFs::ReadFile);
        let both = read | AccessFs::from_write(ABI::V3);
        let there: Vec<_> = rules.iter().filter(|(path, _)| path.starts_with(&root)).collect();
        assert_eq!(there.len(), 99);
        assert!(there.iter().all(|(_, rights)| **rights == both));
        assert_eq!((rules[Path::new("/proc")], rules[Path::new("/proc/self")]), (read, both));
    }

    #[test]
    fn who_needs_libraries_alone_has_few_rules_and_reads_nothing_beside_a_hidden_file() {
        let root = std::env::temp_dir().join(format!("remotegpu-libraries-{}", std::process::id()));
        std::fs::create_dir_all(root.join("own")).expect("folder");
        for number in 0..1000 {
            std::fs::write(root.join(number.to_string()), "").expect("file");
        }
        let (own, hidden) = (root.join("own"), vec![root.join("7"), root.join("own/key")]);
        std::fs::write(&hidden[1], "").expect("file");
        std::fs::write(own.join("library"), "").expect("file");
        let rules = allowed(&libraries_and(&own, &hidden), &hidden, Writable::Beneath(&["/proc/self".into()]));
        let root = root.canonicalize().expect("root");
        std::fs::remove_dir_all(&root).expect("removed");
        let there: Vec<_> = rules.keys().filter(|path| path.starts_with(&root)).collect();
        assert_eq!(there, [&root.join("own/library")]);
        assert!(rules.len() < 100, "{} rules", rules.len());
        assert!(!rules.keys().any(|path| root.starts_with(path)), "no rule covers a folder that leads there");
        assert!(rules.contains_key(&real(Path::new("/usr"))));
    }

    #[test]
    fn a_link_that_leads_beneath_a_hidden_folder_opens_nothing() {
        let root = std::env::temp_dir().join(format!("remotegpu-links-{}", std::process::id()));
        std::fs::create_dir_all(root.join("secrets/account")).expect("folder");
        std::fs::write(root.join("secrets/account/token"), "").expect("file");
        std::fs::write(root.join("library"), "").expect("file");
        for (link, target) in [("folder", "secrets/account"), ("file", "secrets/account/token"), ("open", "library")] {
            std::os::unix::fs::symlink(target, root.join(link)).expect("link");
        }
        let readable = ["folder", "file", "open", "secrets/account"].map(|name| root.join(name));
        let rules = allowed(&readable, &[root.join("secrets")], Writable::Beneath(&[]));
        let root = root.canonicalize().expect("root");
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(rules.into_keys().collect::<Vec<_>>(), [root.join("library")]);
    }

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
