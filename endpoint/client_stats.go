package endpoint

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/lease"
)

// ClientStats describe a client at one moment, without asking its owner.
type ClientStats struct {
	// Socket is the path of the owner's socket.
	Socket string `json:"socket_path"`
	// State is how the client stands to its owner.
	State ClientState `json:"state"`
	// Server is the id of the owner that it is connected to, ConnectedAt when that began; empty and zero where there is
	// no connection.
	Server      string    `json:"server_id,omitempty"`
	ConnectedAt time.Time `json:"connected_at,omitzero"`
	// Connections is how many there have been; all but the first are reconnections. DialFailures is how many attempts
	// came to nothing, and LastFailure why the last of them did.
	Connections  uint64 `json:"connections"`
	DialFailures uint64 `json:"dial_failures"`
	LastFailure  string `json:"last_failure,omitempty"`
	// Versions are those that handles have, by name, owner and version.
	Versions []VersionInUse `json:"versions"`
	// Handles is how many handles are open, BytesMapped the size of their memory. Each handle is a mapping of its own:
	// the same bytes of two handles count twice, and are in memory once.
	Handles     int   `json:"handles"`
	BytesMapped int64 `json:"bytes_mapped"`
	// Watchers is how many watchers are open, References how many references to managed objects.
	Watchers   int `json:"watchers"`
	References int `json:"references"`
}

// VersionInUse is a version that a client has handles of.
type VersionInUse struct {
	// Name is the name of the model, Server the id of the owner that it came from, and Version its version there.
	Name    string `json:"name"`
	Server  string `json:"server_id"`
	Version uint64 `json:"version"`
	// State is how the version stands at its owner, and Newest the newest version of the name that was heard of.
	State  HandleState `json:"state"`
	Newest uint64      `json:"newest"`
	// Handles is how many handles have it, Bytes the size of their memory.
	Handles int   `json:"handles"`
	Bytes   int64 `json:"bytes_mapped"`
}

// Stats describe the client: its connection, the versions that it has, and what they take.
func (c *Client) Stats() ClientStats {
	state, server, dials := c.conn.Standing()
	out := ClientStats{
		Socket: c.opts.Socket, State: ClientState(state), Server: server, Connections: dials.Connections, DialFailures: dials.Failures,
		Versions: []VersionInUse{}, Watchers: c.watchers.Len(), References: c.refs.Len(),
	}
	if out.State == StateConnected {
		out.ConnectedAt = dials.Since
	}
	if dials.Err != nil {
		out.LastFailure = dials.Err.Error()
	}
	c.leases.Each(out.add)
	return out
}

// add counts what a handle has.
func (s *ClientStats) add(a *lease.Lease) {
	state, newest := a.State()
	v := VersionInUse{
		Name: a.Name, Server: a.Server, Version: a.Version, State: HandleState(state), Newest: newest, Handles: 1, Bytes: a.Bytes,
	}
	s.Handles++
	s.BytesMapped += v.Bytes
	i, found := slices.BinarySearchFunc(s.Versions, v, compareInUse)
	if !found {
		s.Versions = slices.Insert(s.Versions, i, v)
		return
	}
	same := &s.Versions[i]
	same.Handles++
	same.Bytes += v.Bytes
	same.Newest, same.State = max(same.Newest, v.Newest), max(same.State, v.State)
}

func compareInUse(a, b VersionInUse) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Version, b.Version))
}

// WriteClientMetrics writes what a client tells about itself as [WriteMetrics] does for a server. Names begin with
// "sharedtensor_client_", so that both can stand in one text. It asks nobody, and so works while the owner is away. The
// only errors are those of w.
func WriteClientMetrics(w io.Writer, stats ClientStats) error {
	var m metrics
	m.gauge("client_connected", "Whether the client is connected to an owner.", truth(stats.State == StateConnected))
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

// inUse writes what is in use of each name. The version is a value and no label: there is no bound on how many there
// are over time.
func (m *metrics) inUse(versions []VersionInUse) {
	names := map[string][]VersionInUse{}
	var order []string
	for _, v := range versions {
		if names[v.Name] == nil {
			order = append(order, v.Name)
		}
		names[v.Name] = append(names[v.Name], v)
	}
	for _, f := range []struct {
		name, help string
		value      func([]VersionInUse) uint64
	}{
		{"client_version", "The newest version of the name that handles have.", func(all []VersionInUse) (newest uint64) {
			for _, v := range all {
				newest = max(newest, v.Version)
			}
			return newest
		}},
		{"client_newest_version", "The newest version of the name that the client has heard of.", func(all []VersionInUse) (newest uint64) {
			for _, v := range all {
				newest = max(newest, v.Newest)
			}
			return newest
		}},
		{"client_versions", "Versions of the name that handles have.", func(all []VersionInUse) uint64 { return uint64(len(all)) }},
		{"client_version_bytes", "Size of the memory of the name's handles.", func(all []VersionInUse) (sum uint64) {
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
