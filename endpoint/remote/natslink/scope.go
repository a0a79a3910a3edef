package natslink

import (
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// everything is the scope of all subjects.
const everything = rights.Everything

// scope translates a scope to the subjects of the server.
type scope struct{ rights.Scope }

// scopesOf returns the valid scopes of a client, except for everything.
func scopesOf(s rights.Scopes) (list []scope) {
	for _, one := range s.Parse() {
		list = append(list, scope{one})
	}
	return list
}

// stream returns the name of the stream of the scope.
func (s scope) stream() string {
	return map[rights.Kind]string{rights.BinItems: "BINS_", rights.QueueItems: "QUEUE_", rights.Objects: "OBJ_", rights.Values: "KV_"}[s.Kind] + s.Namespace
}

// bucket returns the name of the object store of the scope's large bodies, or of its objects. It is empty for values.
func (s scope) bucket() string {
	switch s.Kind {
	case rights.Objects:
		return s.Namespace
	case rights.Values:
		return ""
	}
	return s.stream()
}

// bodies returns the stream of the object store.
func (s scope) bodies() string { return "OBJ_" + s.bucket() }

// subjects returns the subjects of the scope's items.
func (s scope) subjects() string {
	if s.Kind == rights.Values {
		return "$KV." + s.Namespace + "." + s.Rest
	}
	return string(s.Kind) + "." + s.Namespace + "." + s.Rest
}

// live reports whether the client receives new items when they are stored.
func (s scope) live() bool {
	return s.Kind == rights.BinItems || s.Kind == rights.QueueItems && !s.AddOnly
}

// api is the prefix of the requests of JetStream.
const api = "$JS.API."

// services holds the subjects of the requests and publications of a client.
type services struct {
	permitted []string // subjects that the client may publish to
	published []string // those of messages to store
	direct    []string // subjects that the server handles without the gate
	gated     []string // subjects that pass the gate; they may be wider than the permitted ones
	pulled    []string // streams from which the client pulls with its own consumers
}

// allow permits subjects that pass the gate.
func (v *services) allow(subjects ...string) {
	v.permitted, v.gated = append(v.permitted, subjects...), append(v.gated, subjects...)
}

// bypass permits subjects that do not pass the gate.
func (v *services) bypass(subjects ...string) {
	v.permitted, v.direct = append(v.permitted, subjects...), append(v.direct, subjects...)
}

// publish permits publications. The server maps them before it checks the client's permissions.
func (v *services) publish(subject, gated string) {
	v.permitted, v.published, v.gated = append(v.permitted, inward(subject)), append(v.published, subject), append(v.gated, gated)
}

// pullers is the consumer that all takers of a queue share.
const pullers = "pullers"

// services adds the subjects on which a client with this scope may send.
//
// Requests that may name other subjects, other clients' consumers or headers of the server pass the gate. Two kinds do
// not: reads by a client that may read the whole stream, and the pieces of bodies by a client that may remove all of them.
func (s scope) services(v *services) {
	whole := s.Rest == everything && !s.AddOnly
	streams := []string{s.stream()}
	if s.bucket() != "" && s.Kind != rights.Objects {
		streams = append(streams, s.bodies())
	}
	for _, stream := range streams {
		v.allow(api + "STREAM.INFO." + stream)
		if whole {
			v.bypass(api+"STREAM.MSG.GET."+stream, api+"DIRECT.GET."+stream, api+"DIRECT.GET."+stream+".>")
		}
	}
	if s.Rest != everything {
		v.permitted = append(v.permitted, api+"DIRECT.GET."+s.stream()+"."+s.subjects(), api+"DIRECT.GET."+s.stream()+".bin-take."+s.Namespace+"."+s.Rest)
		v.gated = append(v.gated, api+"DIRECT.GET."+s.stream()+".>")
		v.allow(api+"DIRECT.GET."+s.stream(), api+"STREAM.MSG.GET."+s.stream())
	}
	if s.Kind != rights.QueueItems {
		for _, stream := range streams {
			v.allow(api + "CONSUMER.CREATE." + stream + ".>")
		}
		for _, verb := range []string{"MSG.NEXT", "INFO", "DELETE"} {
			v.allow(api + "CONSUMER." + verb + "." + s.stream() + ".*")
		}
		v.pulled = append(v.pulled, s.stream())
	}
	if s.Write {
		s.changes(v)
	}
}

// changes adds the subjects on which a client may change the scope.
func (s scope) changes(v *services) {
	whole := s.Rest == everything && !s.AddOnly
	switch s.Kind {
	case rights.BinItems:
		v.publish(s.subjects(), "bin."+s.Namespace+".>")
		v.publish("bin-take."+s.Namespace+"."+s.Rest, "bin-take."+s.Namespace+".>")
		// A writer whose answer was lost sends its id again to a subject without a bin.
		v.publish("bin."+s.Namespace+".%", "bin."+s.Namespace+".>")
		v.publish("bin-take."+s.Namespace+".%", "bin-take."+s.Namespace+".>")
		v.allow(api + "STREAM.PURGE." + s.stream())
	case rights.QueueItems, rights.Values:
		v.publish(s.subjects(), s.subjects())
	}
	if s.Kind == rights.QueueItems && !s.AddOnly { // reading from a queue takes its items
		v.allow(api+"STREAM.PURGE."+s.stream(), api+"CONSUMER.CREATE."+s.stream()+"."+pullers, api+"CONSUMER.INFO."+s.stream()+"."+pullers)
		v.allow(api + "CONSUMER.CREATE." + s.bodies() + ".>") // refused: the library then reads in another way
		v.bypass(nextMessage+s.stream()+"."+pullers, ackSubjects+s.stream()+"."+pullers+".>")
	}
	if s.bucket() == "" {
		return
	}
	pieces, descriptions := "$O."+s.bucket()+".C.*", "$O."+s.bucket()+".M.*"
	v.publish(descriptions, descriptions)
	if whole {
		v.bypass(pieces)
	} else {
		v.publish(pieces, pieces)
	}
	// The library looks for an object of the same name before it writes one.
	v.permitted = append(v.permitted, api+"DIRECT.GET."+s.bodies()+"."+descriptions)
	v.gated = append(v.gated, api+"DIRECT.GET."+s.bodies()+".>")
	v.allow(api + "STREAM.PURGE." + s.bodies())
}

// covers reports whether every subject that matches pattern also matches one of the allowed patterns.
func covers(allowed []string, pattern string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return subset(strings.Split(a, "."), strings.Split(pattern, ".")) })
}

// subset reports whether a pattern of subjects only matches subjects that the other one matches too.
func subset(allowed, pattern []string) bool {
	for i, a := range allowed {
		switch {
		case i >= len(pattern):
			return false
		case a == everything:
			return true
		case pattern[i] == everything, a != "*" && a != pattern[i]:
			return false
		}
	}
	return len(allowed) == len(pattern)
}
