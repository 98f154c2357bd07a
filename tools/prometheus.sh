#!/bin/sh
# Debian's Prometheus and promtool into target/prometheus, for the tests of the alerts: nothing is installed or started.
set -eu
cd "$(dirname "$0")/.."
folder=target/prometheus
test ! -x $folder/usr/bin/promtool || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no apt-get here: install promtool yourself, or the tests of the alerts are skipped"
    exit 0
fi
mkdir -p $folder
(cd $folder && apt-get -qq download prometheus 2>/dev/null) || {
    echo "the Debian package prometheus is not to be had (apt-get update?): the tests of the alerts are skipped"
    exit 0
}
dpkg-deb -x $folder/prometheus_*.deb $folder
rm $folder/prometheus_*.deb
