//! Addresses as users and manifests write them: HOST:PORT, with an IPv6 address in brackets or bare. The Python module
//! `remotegpu/api/addresses.py` accepts the same forms, and the tests of both use one table.

/// Returns the host without brackets, and the port. Returns `None` if the text is invalid, or if it has no port and
/// there is no `default_port`.
pub fn split(text: &str, default_port: Option<u16>) -> Option<(&str, u16)> {
    let text = text.trim();
    let (host, port) = match (text.rsplit_once(':'), default_port) {
        (Some((host, port)), _) if default_port.is_none() || !text.ends_with(']') => {
            (host, Some(port).filter(|port| port.bytes().all(|digit| digit.is_ascii_digit()))?.parse().ok()?)
        }
        (_, Some(port)) => (text, port),
        (_, None) => return None,
    };
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    (!host.is_empty()).then_some((host, port))
}

/// Returns HOST:PORT, or [V6]:PORT for an IPv6 address.
pub fn joined(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_take_the_same_addresses() {
        let table = include_str!("../../../../tests/appliance/addresses.txt");
        let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('|').collect::<Vec<_>>());
        for row in rows {
            let [text, default, expected] = row[..] else { panic!("{row:?}") };
            let found = split(text, default.parse().ok()).map(|(host, port)| format!("{host} {port}"));
            assert_eq!(found.as_deref().unwrap_or("none"), expected, "{text}");
        }
    }

    #[test]
    fn an_ipv6_address_gets_its_brackets_back() {
        assert_eq!(joined("::1", 9), "[::1]:9");
        assert_eq!(joined("gpu.example", 9), "gpu.example:9");
    }
}
