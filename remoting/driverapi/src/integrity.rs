//! The driver's answer to the integrity check of cudart. With a wrong answer cudart fails with error 103.
//!
//! The source is ZLUDA, `dark_api/src/lib.rs` at github.com/vosen/ZLUDA (MIT or Apache-2.0), which describes the call,
//! its inputs and its constants. Its steps are HMAC (RFC 2104) over MD2 (RFC 1319), so this module uses those
//! algorithms. The inputs include addresses and the process id, so only the library that the program loaded can compute
//! the answer.

use crate::types::CUuuid;
use hmac::{Mac, SimpleHmac};
use md2::Md2;

const KEY: [u8; 16] = [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// A device's identity. All functions of the driver must report the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    pub uuid: CUuuid,
    pub pci_domain: u32,
    pub pci_bus: u32,
    pub pci_device: u32,
}

/// The process state that the answer covers.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub driver_version: u32,
    pub process: u32,
    /// The low half of the result of `pthread_self`.
    pub thread: u32,
    pub cudart_table: u64,
    pub integrity_table: u64,
    pub function: u64,
}

/// Computes the answer. The last digit of `version` is the round: rounds 0 and 1 have fixed answers, later rounds use
/// the keyed hash.
pub fn answer(version: u32, unix_seconds: u64, caller: &Caller, devices: &[DeviceIdentity]) -> [u64; 2] {
    match version % 10 {
        0 => [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        1 => [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        _ => keyed_hash(version, unix_seconds, caller, devices),
    }
}

fn keyed_hash(version: u32, unix_seconds: u64, caller: &Caller, devices: &[DeviceIdentity]) -> [u64; 2] {
    let mut mac = SimpleHmac::<Md2>::new_from_slice(&KEY).expect("HMAC takes keys of any length");
    for word in [caller.driver_version, version, caller.process, caller.thread] {
        mac.update(&word.to_le_bytes());
    }
    for word in [caller.cudart_table, caller.integrity_table, caller.function, unix_seconds] {
        mac.update(&word.to_le_bytes());
    }
    for device in devices {
        mac.update(&device.uuid.bytes);
        for word in [device.pci_domain, device.pci_bus, device.pci_device] {
            mac.update(&word.to_le_bytes());
        }
    }
    let digest = u128::from_le_bytes(mac.finalize().into_bytes().into());
    [digest as u64, (digest >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: Caller = Caller {
        driver_version: 13_000,
        process: 4_242,
        thread: 0xf79c_1000,
        cudart_table: 0x7fff_f695_8240,
        integrity_table: 0x7fff_f695_8220,
        function: 0x7fff_f2aa_f4a0,
    };

    const DEVICE: DeviceIdentity =
        DeviceIdentity { uuid: CUuuid { bytes: *b"0123456789abcdef" }, pci_domain: 0, pci_bus: 2, pci_device: 0 };

    #[test]
    fn first_two_rounds_are_fixed() {
        assert_eq!(answer(13_020, 1, &CALLER, &[]), answer(12_080, 2, &CALLER, &[DEVICE]));
        assert_eq!(answer(13_021, 1, &CALLER, &[])[0], 0x1841_181c_03cb_675c);
    }

    #[test]
    fn third_round_is_hmac_md2() {
        // The expected value is from an independent implementation of both RFCs.
        assert_eq!(answer(13_022, 0x682b_9cee, &CALLER, &[DEVICE]), [0x9f78_f4e7_4042_e2b2, 0x6c70_e21e_4a48_5c1c]);
    }

    #[test]
    fn every_input_matters() {
        let reference = answer(13_022, 7, &CALLER, &[DEVICE]);
        let changed = [
            answer(12_092, 7, &CALLER, &[DEVICE]),
            answer(13_022, 8, &CALLER, &[DEVICE]),
            answer(13_022, 7, &CALLER, &[]),
            answer(13_022, 7, &Caller { driver_version: 12_080, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &Caller { process: 1, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &Caller { thread: 1, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &Caller { cudart_table: 1, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &Caller { integrity_table: 1, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &Caller { function: 1, ..CALLER }, &[DEVICE]),
            answer(13_022, 7, &CALLER, &[DeviceIdentity { pci_bus: 3, ..DEVICE }]),
        ];
        assert!(changed.iter().all(|other| *other != reference));
    }
}
