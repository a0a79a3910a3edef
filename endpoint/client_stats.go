package endpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
)

// ClientStats describes a client at one moment, without a request to its owner.
type ClientStats struct {
	// Socket is the path of the owner's socket.
	Socket string `json:"socket_path"`
	// State is the state of the connection.
	State ClientState `json:"state"`
	// Server is the id of the connected owner and ConnectedAt the time of the connection. They are empty and zero
	// without a connection.
	Server      string    `json:"server_id,omitempty"`
	ConnectedAt time.Time `json:"connected_at,omitzero"`
	// Connections counts connections; all but the first are reconnections. DialFailures counts failed attempts to
	// connect, and LastFailure is the error of the last one.
	Connections  uint64 `json:"connections"`
	DialFailures uint64 `json:"dial_failures"`
	LastFailure  string `json:"last_failure,omitempty"`
	// Versions lists the versions in use, sorted by name, owner and version.
	Versions []VersionInUse `json:"versions"`
	// Handles is the number of open handles and BytesMapped the size of their memory. Each handle has a separate
	// mapping: bytes that two handles map count twice, though they are in memory once.
	Handles     int   `json:"handles"`
	BytesMapped int64 `json:"bytes_mapped"`
	// Watchers is the number of open watchers and References the number of references to managed objects.
	Watchers   int `json:"watchers"`
	References int `json:"references"`
}

// VersionInUse describes a version for which a client has handles.
type VersionInUse struct {
	// Name is the name of the model, Server the id of its owner, and Version the version number.
	Name    string `json:"name"`
	Server  string `json:"server_id"`
	Version uint64 `json:"version"`
	// State is the state of the version at its owner, and Newest the newest version of the name that was reported.
	State  HandleState `json:"state"`
	Newest uint64      `json:"newest"`
	// Handles is the number of handles of the version and Bytes the size of their memory.
	Handles int   `json:"handles"`
	Bytes   int64 `json:"bytes_mapped"`
}

// Stats returns the client's connection state, the versions in use and their memory.
func (c *Client) Stats() ClientStats {
	state, server, dials := c.conn.Standing()
	out := ClientStats{
		Socket: c.opts.Socket, State: clientState(state), Server: server, Connections: dials.Connections, DialFailures: dials.Failures,
		Versions: []VersionInUse{}, Watchers: len(client.All[*client.Watcher](c.conn.Connector)), References: len(client.All[*client.Reference](c.conn.Connector)),
	}
	if out.State == StateConnected {
		out.ConnectedAt = dials.Since
	}
	if dials.Err != nil {
		out.LastFailure = dials.Err.Error()
	}
	for _, a := range client.All[*client.Lease](c.conn.Connector) {
		out.add(a)
	}
	return out
}

// add adds a handle's lease to the statistics.
func (s *ClientStats) add(a *client.Lease) {
	v := VersionInUse{
		Name: a.Name, Server: a.Server, Version: a.Version, State: stateOf(a), Newest: a.State().Newest, Handles: 1, Bytes: a.Bytes,
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
