package server

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// watch subscribes the client to events of names. The current versions are reported first.
func (m *modelOperations) watch(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.Watch
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.Names) > session.MaxNames {
		return nil, fmt.Errorf("%w: a watch has at most %d names, watch all instead", status.ErrLimit, session.MaxNames)
	}
	c := clientOf(r.Session)
	for _, name := range in.Names {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		if err := c.may(access.List, name); err != nil {
			return nil, err
		}
	}
	if len(in.Names) == 0 {
		in.Names = nil
	}
	return subscribe(r, &namesSource{of: m.Catalog, names: in.Names, current: true, client: c}, message.Watching{})
}

// namesSource reports events of names. The catalog's watcher keeps the newest event of each name.
type namesSource struct {
	of      *catalog.Catalog
	names   []string // nil for all
	current bool     // report current versions first
	client  *client  // only names that this client may list are reported; nil for all
	// withdrawn is a version of the only name that was withdrawn at an earlier owner; 0 for none. It is reported first.
	withdrawn uint64
	watcher   *catalog.Watcher
}

// Weight implements [session.Source]. A watch of all names has the maximum weight of a watch because its queue may
// hold that many events or more.
func (n *namesSource) Weight() int {
	if n.names == nil {
		return session.MaxNames
	}
	return max(1, len(n.names))
}

func (n *namesSource) Open(wake func()) { n.watcher = n.of.Subscribe(n.names, wake) }
func (n *namesSource) Opening() bool    { return n.current }
func (n *namesSource) Close()           { n.watcher.Close() }

// Take implements [session.Source].
func (n *namesSource) Take() (events []any) {
	list := n.watcher.Next()
	if n.current || len(list) > 0 && list[0].Kind == catalog.Overflow {
		n.current = false
		list = append(currentVersions(n.of, n.names), list...)
	}
	if n.withdrawn != 0 {
		list = append([]catalog.Event{{Kind: catalog.Withdrawn, Name: n.names[0], Version: n.withdrawn}}, list...)
		n.withdrawn = 0
	}
	for _, event := range list {
		if n.client != nil && event.Name != "" && !n.client.allowed(access.List, event.Name) { // the policy may change during the watch
			continue
		}
		if out, ok := encodeEvent(event); ok {
			events = append(events, out)
		}
	}
	return events
}

// currentVersions returns events for the current versions of the names. A client ignores a version that it has already
// seen.
func currentVersions(of *catalog.Catalog, names []string) []catalog.Event {
	var list []catalog.Event
	note := func(info catalog.Info) {
		if info.Current != 0 {
			list = append(list, catalog.Event{Kind: catalog.Published, Name: info.Name, Version: info.Current})
		}
	}
	if names == nil {
		for _, info := range of.List() {
			note(info)
		}
		return list
	}
	for _, name := range names {
		if info, err := of.Info(name); err == nil {
			note(info)
		}
	}
	return list
}

// eventKinds are the catalog events that clients receive.
var eventKinds = map[catalog.EventKind]message.EventKind{
	catalog.Published: message.EventPublished, catalog.Withdrawn: message.EventWithdrawn,
}

// encodeEvent converts an event to its wire form. It returns false if clients do not receive the event.
func encodeEvent(e catalog.Event) (message.Event, bool) {
	kind := eventKinds[e.Kind]
	return message.Event{Seq: e.Seq, Kind: kind, Name: e.Name, Version: e.Version}, kind != 0
}
