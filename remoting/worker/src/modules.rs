//! Images, modules, links and launches.

use crate::completer::Then;
use crate::driver::{Code, Driver, Handle, JitOptions, LaunchCall, RawAttribute, Result, code};
use crate::image_rules::ImageRules;
use crate::objects::{Kernel, Module};
use crate::rules::{Rule, kept};
use crate::session::{Outcome, Session};
use crate::settings::{KernelSettings, Settings};
use driverapi::attributes::{LAUNCH_REFUSAL, LAUNCH_REQUIRED_BLOCK_WIDTH};
use protocol::{
    KernelInfo, KernelParam, Launch, LaunchAttribute, Link, Linked, MAX_PAYLOAD, ModuleGlobal, ModuleLoad,
    ModuleLoaded, NEED_IMAGE, Reply, Symbol, Wire,
};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

type Hash = [u8; 32];

/// Images that a session may keep, finished or not.
const MOST_IMAGE_BYTES: u64 = 1 << 30;
/// `CUfunction_attribute`s there are.
const FUNCTION_ATTRIBUTES: u32 = 18;

struct Arriving {
    bytes: Vec<u8>,
    total: u64,
    hasher: Sha256,
}

/// Images under the hash of their bytes. Each is followed by a zero byte, which is not part of it: PTX is a C string.
#[derive(Default)]
pub struct ImageStore {
    images: HashMap<Hash, Arc<Vec<u8>>>,
    arriving: HashMap<Hash, Arriving>,
    bytes: u64,
}

impl ImageStore {
    /// Takes a piece. Pieces come in order; what does not fit is dropped, and the load answers that it lacks the image.
    pub fn add(&mut self, hash: Hash, offset: u64, total: u64, piece: &[u8]) {
        if self.images.contains_key(&hash) {
            return;
        }
        if offset == 0 {
            self.drop_arriving(&hash);
            self.arriving.insert(hash, Arriving { bytes: Vec::new(), total, hasher: Sha256::new() });
        }
        let Some(image) = self.arriving.get_mut(&hash) else { return };
        let (have, more) = (image.bytes.len() as u64, piece.len() as u64);
        if have != offset || image.total != total || have + more > total || self.bytes + more > MOST_IMAGE_BYTES {
            return self.drop_arriving(&hash);
        }
        image.bytes.extend_from_slice(piece);
        image.hasher.update(piece);
        self.bytes += more;
        if have + more == total
            && let Some(mut image) = self.arriving.remove(&hash)
        {
            if Hash::from(image.hasher.finalize()) == hash {
                image.bytes.push(0);
                self.images.insert(hash, Arc::new(image.bytes));
            } else {
                self.bytes -= total;
            }
        }
    }

    fn drop_arriving(&mut self, hash: &Hash) {
        if let Some(image) = self.arriving.remove(hash) {
            self.bytes -= image.bytes.len() as u64;
        }
    }

    fn get(&self, hash: &Hash) -> Option<Arc<Vec<u8>>> {
        self.images.get(hash).cloned()
    }
}

struct Loaded {
    handle: Handle,
    kernels: Vec<(Handle, KernelInfo)>,
}

fn load(
    driver: &Driver,
    context: Handle,
    image: &[u8],
    options: &[(u32, u64)],
) -> std::result::Result<Loaded, (Code, String)> {
    driver.set_current(context).map_err(|code| (code, String::new()))?;
    let mut jit = JitOptions::new(options);
    let handle = driver.module_load(image, &mut jit).map_err(|code| (code, jit.logs().1))?;
    let functions = driver.module_functions(handle);
    let rules = ImageRules::of(image);
    let described = |f| Ok((f, rules.complete(describe(driver, f)?)));
    let kernels = functions.and_then(|all| all.into_iter().map(described).collect());
    kernels.map(|kernels| Loaded { handle, kernels }).map_err(|code| {
        let _ = driver.module_unload(handle);
        let log = match code {
            code::NOT_SUPPORTED => {
                "the appliance's driver cannot list a module's kernels: it needs driver 550 or newer"
            }
            _ => "the kernels of the module could not be listed",
        };
        (code, log.to_owned())
    })
}

fn describe(driver: &Driver, function: Handle) -> Result<KernelInfo> {
    let name = driver.function_name(function)?;
    let mut params = Vec::new();
    loop {
        match driver.function_param(function, params.len()) {
            Ok((offset, size)) => params.push(KernelParam { offset: offset as u32, size: size as u32 }),
            Err(code::INVALID_VALUE) => break,
            Err(code) => return Err(code),
        }
    }
    let attribute = |id| driver.function_attribute(function, id).ok().map(|value| (id, value));
    // The software GPU tells with them what else it would refuse a launch for.
    let asked = (0..FUNCTION_ATTRIBUTES).chain(LAUNCH_REQUIRED_BLOCK_WIDTH..=LAUNCH_REFUSAL);
    Ok(KernelInfo { name, params, attributes: asked.filter_map(attribute).collect() })
}

/// Attributes that name objects of the client or hand out new ones are not taken over; for events there is
/// `launch_events`.
pub fn attribute(a: &LaunchAttribute) -> Result<RawAttribute> {
    const UPDATABLE_NODE: u32 = 13;
    match a.id {
        LaunchAttribute::PROGRAMMATIC_EVENT | LaunchAttribute::COMPLETION_EVENT | UPDATABLE_NODE => {
            Err(code::NOT_SUPPORTED)
        }
        id => Ok(RawAttribute { id, pad: 0, value: a.value }),
    }
}

impl Session {
    pub fn reply_logged(&mut self, seq: u64, code: Code, log: String) {
        self.reply_with(seq, code, &ModuleLoaded { kernels: Vec::new(), log }, &[]);
    }

    pub fn module_load(&mut self, seq: u64, c: &ModuleLoad) -> Result<()> {
        let context = self.contexts.get(c.context)?.handle;
        if self.modules.contains(c.module) || self.modules.is_full() {
            return Err(code::INVALID_VALUE);
        }
        let Some(image) = self.images.get(&c.hash) else {
            self.reply_logged(seq, NEED_IMAGE, String::new());
            return Ok(());
        };
        let (module, context_id, options) = (c.module, c.context, c.options.clone());
        self.helpers.start(
            move |driver| load(driver, context, &image, &options),
            move |session: &mut Session, loaded| match loaded {
                Ok(loaded) => session.module_loaded(seq, module, context_id, loaded),
                Err((code, log)) => session.reply_logged(seq, code, log),
            },
        );
        Ok(())
    }

    fn module_loaded(&mut self, seq: u64, id: u64, context: u64, loaded: Loaded) {
        let kernel = |(function, info): &(Handle, KernelInfo)| Kernel {
            function: *function,
            parameter_bytes: info.params.iter().map(|p| p.offset as usize + p.size as usize).max().unwrap_or(0),
            settings: KernelSettings::default(),
        };
        let kernels = loaded.kernels.iter().map(kernel).collect();
        self.modules.insert(id, Ok(Module { context, handle: loaded.handle, kernels }));
        let kernels = loaded.kernels.into_iter().map(|(_, info)| info).collect();
        let answer = ModuleLoaded { kernels, log: String::new() };
        if answer.size() + Reply::MIN_SIZE > MAX_PAYLOAD {
            return self.reply_logged(seq, code::OUT_OF_MEMORY, "the module has too many kernels to list".to_owned());
        }
        self.reply_with(seq, 0, &answer, &[]);
    }

    /// Unloaded when all work of the context so far is complete: the driver may wait for it, and nobody else must.
    pub fn module_unload(&mut self, seq: u64, id: u64) -> Result<()> {
        let module = self.modules.remove(id)?;
        self.context_join(module.context, seq, Then::UnloadModule { context: module.context, module: module.handle })
    }

    pub fn unload(&mut self, id: u64, module: Handle) {
        // With its context the module is gone already.
        let Ok(context) = self.contexts.get(id).map(|c| c.handle) else { return };
        self.helpers.start(
            move |driver| driver.set_current(context).and_then(|()| driver.module_unload(module)),
            move |session: &mut Session, unloaded| session.late_in(id, unloaded),
        );
    }

    pub fn module_global(&mut self, seq: u64, c: &ModuleGlobal) -> Result<()> {
        let (handle, context) = {
            let module = self.modules.get(c.module)?;
            (module.handle, module.context)
        };
        self.enter(context)?;
        let name = CString::new(c.name.as_str()).map_err(|_| code::NOT_FOUND)?;
        let (address, size) = self.driver.module_global(handle, &name)?;
        self.memory.add_global(address, size as u64);
        self.reply_with(seq, 0, &Symbol { address, size: size as u64 }, &[]);
        Ok(())
    }

    /// `settings`: what was set when the launch arrived, if it had to wait since.
    pub fn launch(
        &mut self,
        seq: u64,
        lane: u64,
        c: &Launch,
        settings: Option<&Settings>,
        parameters: &[u8],
    ) -> Result<Outcome> {
        let Some(stream) = self.begin(lane)? else { return Ok(Outcome::Blocked) };
        let mut given = self.launch_attributes(lane, &c.attributes)?;
        let module = self.modules.get(c.module)?;
        let Kernel { function, parameter_bytes, settings: own } =
            module.kernels.get(c.kernel as usize).ok_or(code::INVALID_HANDLE)?;
        // The driver reads as much as the kernel takes, whatever size it is told.
        let parameters = parameters.get(..*parameter_bytes).ok_or(code::INVALID_VALUE)?;
        own.apply(&self.driver, *function, settings.unwrap_or(own.wanted()))?;
        if !kept(Rule::LaunchCount) && self.stats.launches == 500 {
            return Ok(Outcome::Done);
        }
        let (grid, block, shared, attributes) = (c.grid, c.block, c.shared, &mut given.raw[..]);
        self.driver.launch(LaunchCall { function: *function, stream, grid, block, shared, attributes, parameters })?;
        self.stats.launches += 1;
        self.issued(lane);
        self.launch_recorded(seq, given)?;
        Ok(Outcome::Done)
    }

    pub fn link(&mut self, seq: u64, c: &Link) -> Result<()> {
        let context = self.contexts.get(c.context)?.handle;
        let images: Option<Vec<_>> = c.inputs.iter().map(|input| self.images.get(&input.hash)).collect();
        let Some(images) = images else {
            self.reply(seq, NEED_IMAGE);
            return Ok(());
        };
        let (inputs, options) = (c.inputs.clone(), c.options.clone());
        self.helpers.start(
            move |driver| {
                let mut jit = JitOptions::new(&options);
                let named = |(input, image): (&protocol::LinkInput, &Arc<Vec<u8>>)| {
                    const PTX: u32 = 1;
                    // Only PTX is text and counts its terminating zero byte.
                    let end = image.len() - usize::from(input.kind != PTX);
                    (input.kind, CString::new(input.name.replace('\0', "")).unwrap_or_default(), image.clone(), end)
                };
                let named: Vec<_> = inputs.iter().zip(&images).map(named).collect();
                let inputs: Vec<_> =
                    named.iter().map(|(kind, name, image, end)| (*kind, name.clone(), &image[..*end])).collect();
                let linked = driver.set_current(context).and_then(|()| driver.link(&inputs, &mut jit));
                (linked, jit.logs())
            },
            move |session: &mut Session, (linked, (info_log, error_log))| {
                let answer = Linked { info_log, error_log };
                match linked {
                    Ok(image) if image.len() + answer.size() + Reply::MIN_SIZE > MAX_PAYLOAD => {
                        session.reply_with(seq, code::OUT_OF_MEMORY, &answer, &[]);
                    }
                    Ok(image) => session.reply_with(seq, 0, &answer, &image),
                    Err(code) => session.reply_with(seq, code, &answer, &[]),
                }
            },
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(bytes: &[u8]) -> Hash {
        Sha256::digest(bytes).into()
    }

    #[test]
    fn images_are_found_under_their_hash_only() {
        let (mut store, image) = (ImageStore::default(), vec![7; 1000]);
        store.add(hash(&image), 0, 1000, &image[..400]);
        assert!(store.get(&hash(&image)).is_none());
        store.add(hash(&image), 400, 1000, &image[400..]);
        assert_eq!(store.get(&hash(&image)).unwrap()[..], [&image[..], &[0]].concat());
        store.add([1; 32], 0, 1000, &image);
        assert!(store.get(&[1; 32]).is_none());
        assert_eq!(store.bytes, 1000);
    }

    #[test]
    fn wrong_pieces_are_dropped() {
        let (mut store, image) = (ImageStore::default(), vec![7; 1000]);
        let name = hash(&image);
        store.add(name, 400, 1000, &image[400..]);
        store.add(name, 0, 1000, &image[..400]);
        store.add(name, 300, 1000, &image[300..]);
        store.add(name, 0, u64::MAX, &image);
        store.add(name, 1000, 2000, &image);
        assert_eq!((store.bytes, store.images.len()), (0, 0));
        store.add(name, 0, 1000, &image);
        assert!(store.get(&name).is_some());
    }
}
