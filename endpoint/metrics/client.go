package metrics

import (
	"io"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// WriteClient writes a client's statistics in the format of [Write]. Names begin with
// "sharedtensor_client_", so both can be in one text. It needs no connection to the owner. It returns only errors of w.
func WriteClient(w io.Writer, stats endpoint.ClientStats) error {
	var m writer
	m.gauge("client_connected", "Whether the client is connected to an owner.", truth(stats.State == endpoint.StateConnected))
	m.counter("client_connections_total", "Connections to owners; all but the first are reconnections.", stats.Connections)
	m.counter("client_dial_failures_total", "Attempts to connect that came to nothing.", stats.DialFailures)
	m.gauge("client_handles", "Handles that are open.", strconv.Itoa(stats.Handles))
	m.gauge("client_mapped_bytes", "Size of the memory of the handles that are open.", strconv.FormatInt(stats.BytesMapped, 10))
	m.gauge("client_watchers", "Watchers that are open.", strconv.Itoa(stats.Watchers))
	m.gauge("client_references", "References to managed objects.", strconv.Itoa(stats.References))
	m.inUse(stats.Versions)
	_, err := w.Write(m.text.Bytes())
	return err
}

// inUse writes the metrics of the versions in use, by name. The version is a value rather than a label, because the
// number of versions over time is unbounded.
func (m *writer) inUse(versions []endpoint.VersionInUse) {
	names := map[string][]endpoint.VersionInUse{}
	var order []string
	for _, v := range versions {
		if names[v.Name] == nil {
			order = append(order, v.Name)
		}
		names[v.Name] = append(names[v.Name], v)
	}
	for _, f := range []struct {
		name, help string
		value      func([]endpoint.VersionInUse) uint64
	}{
		{"client_version", "The newest version of the name that handles have.", func(all []endpoint.VersionInUse) (newest uint64) {
			for _, v := range all {
				newest = max(newest, v.Version)
			}
			return newest
		}},
		{"client_newest_version", "The newest version of the name that the client has heard of.", func(all []endpoint.VersionInUse) (newest uint64) {
			for _, v := range all {
				newest = max(newest, v.Newest)
			}
			return newest
		}},
		{"client_versions", "Versions of the name that handles have.", func(all []endpoint.VersionInUse) uint64 { return uint64(len(all)) }},
		{"client_version_bytes", "Size of the memory of the name's handles.", func(all []endpoint.VersionInUse) (sum uint64) {
			for _, v := range all {
				sum += uint64(v.Bytes)
			}
			return sum
		}},
	} {
		m.family(f.name, "gauge", f.help)
		for _, name := range order {
			m.sample(f.name, count(f.value(names[name])), "name", name)
		}
	}
}
