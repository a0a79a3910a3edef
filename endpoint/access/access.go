// Package access describes which processes may do what at an owner. A [Policy] is a list of rules. Each rule gives
// users and groups of the host rights to names and endpoints. Nothing is denied by a rule: a process has the union of
// the rights of all rules that match it, and no others.
//
//	policy := &access.Policy{Rules: []access.Rule{
//		{UIDs: []uint32{1001}, List: []string{"*"}, Publish: []string{"llm-*"}, Withdraw: []string{"llm-*"}},
//		{GIDs: []uint32{2000}, List: []string{"*"}, Acquire: []string{"*"}, Call: []string{"embed"}},
//	}}
//	server, err := endpoint.NewServer(endpoint.ServerOptions{Policy: policy})
//
// The package only decides. The server reads the credentials of a process from the kernel. A gateway has no such
// credentials of its clients: it selects the rules by token or certificate and passes rules for everyone.
package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Right is one kind of access.
type Right uint8

const (
	// Connect is the right to have a session. A process that matches a rule has it.
	Connect Right = iota
	// Info is the right to read the status of the owner: its clients, limits and counters.
	Info
	// List is the right to see a name: in lists, descriptions and watches.
	List
	// Acquire is the right to use the versions of a name. It includes List.
	Acquire
	// Publish is the right to add versions to a name: new ones, and superseded ones by a rollback.
	Publish
	// Withdraw is the right to withdraw a name.
	Withdraw
	// Call is the right to use an endpoint: calls, streams, tasks and their results, and its cache.
	Call
	// Offer is the right to offer an endpoint, whose callers trust the process with their arguments.
	Offer
	// Destroy is the right to destroy objects that other processes hold. Rules do not include it.
	Destroy

	rights
)

var rightNames = [rights]string{"connect", "info", "list", "acquire", "publish", "withdraw", "call", "offer", "destroy"}

// String returns the name of the right in policy files, texts and metrics.
func (r Right) String() string {
	if r < rights {
		return rightNames[r]
	}
	return fmt.Sprintf("right %d", uint8(r))
}

// Rights returns all rights.
func Rights() []Right {
	list := make([]Right, rights)
	for i := range list {
		list[i] = Right(i)
	}
	return list
}

// Rule gives rights to processes. A process matches if its effective user is one of UIDs, if its effective group or one
// of its supplementary groups is one of GIDs, or if Everyone is set.
//
// A pattern of List to Offer matches a whole name. An asterisk stands for any characters, also none and also slashes;
// every other character stands for itself.
type Rule struct {
	// UIDs and GIDs list users and groups.
	UIDs, GIDs []uint32
	// Everyone matches all processes of the host.
	Everyone bool

	// Info gives the right of that name.
	Info bool
	// List, Acquire, Publish and Withdraw contain patterns of the names of models.
	List, Acquire, Publish, Withdraw []string
	// Call and Offer contain patterns of the names of endpoints.
	Call, Offer []string
}

// Policy is a list of rules. It must not change while a server uses it.
type Policy struct {
	// Rules add up. A policy without rules admits only the owner's user.
	Rules []Rule
	// RestrictOwner applies the rules also to processes of the owner's user. Otherwise they have every right, because a
	// process can trace other processes of its user. Set it if the processes of that user run in separate containers.
	// The server's own process is never restricted.
	RestrictOwner bool
}

// Limits of a policy, so that a check stays short.
const (
	MaxRules    = 1024 // rules of a policy
	MaxPatterns = 256  // patterns of one right in a rule
	MaxPattern  = 512  // bytes of a pattern
)

// noID is the number that the kernel uses for an absent user or group.
const noID = 1<<32 - 1

// ErrPolicy is matched by all errors of [Policy.Check].
var ErrPolicy = errors.New("invalid policy")

// Check returns an error that names the first invalid rule: it matches no process, includes no right, or has an invalid
// id, an empty pattern or a long one.
func (p *Policy) Check() error {
	if len(p.Rules) > MaxRules {
		return fmt.Errorf("%w: it has %d rules, the limit is %d", ErrPolicy, len(p.Rules), MaxRules)
	}
	for i := range p.Rules {
		if err := p.Rules[i].check(); err != nil {
			return fmt.Errorf("%w: rule %d: %w", ErrPolicy, i+1, err)
		}
	}
	return nil
}

func (r *Rule) check() error {
	if len(r.UIDs)+len(r.GIDs) == 0 && !r.Everyone {
		return errors.New("it matches no process: add a user or a group")
	}
	if slices.Contains(r.UIDs, noID) || slices.Contains(r.GIDs, noID) {
		return fmt.Errorf("%d is not an id", uint32(noID))
	}
	gives := r.Info
	for right := List; right <= Offer; right++ {
		patterns := r.Patterns(right)
		gives = gives || len(patterns) > 0
		if len(patterns) > MaxPatterns {
			return fmt.Errorf("%s has %d patterns, the limit is %d", right, len(patterns), MaxPatterns)
		}
		for _, pattern := range patterns {
			if pattern == "" || len(pattern) > MaxPattern {
				return fmt.Errorf("%s: a pattern has 1 to %d bytes, this one %d", right, MaxPattern, len(pattern))
			}
		}
	}
	if !gives {
		return errors.New("it gives no right")
	}
	return nil
}

// Patterns returns the patterns of a right that concerns names; nil for the others.
func (r *Rule) Patterns(right Right) []string {
	switch right {
	case List:
		return r.List
	case Acquire:
		return r.Acquire
	case Publish:
		return r.Publish
	case Withdraw:
		return r.Withdraw
	case Call:
		return r.Call
	case Offer:
		return r.Offer
	}
	return nil
}

// Subject is a process by its kernel credentials: its effective user and all its groups.
type Subject struct {
	// UID is the effective user.
	UID uint32
	// GIDs contains the effective and the supplementary groups.
	GIDs []uint32
}

// matches reports whether the rule applies to the process.
func (r *Rule) matches(s Subject) bool {
	return r.Everyone || slices.Contains(r.UIDs, s.UID) || slices.ContainsFunc(r.GIDs, func(gid uint32) bool { return slices.Contains(s.GIDs, gid) })
}

// Grants are the rights of one process. The zero value gives none.
type Grants struct {
	all, connect, info bool
	patterns           [rights][]string
}

// All returns every right.
func All() Grants { return Grants{all: true} }

// Of returns the rights that the rules give to a process.
func (p *Policy) Of(s Subject) (g Grants) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if !r.matches(s) {
			continue
		}
		g.connect, g.info = true, g.info || r.Info
		for right := List; right <= Offer; right++ {
			g.patterns[right] = append(g.patterns[right], r.Patterns(right)...)
		}
		g.patterns[List] = append(g.patterns[List], r.Acquire...) // readers watch the names that they use
	}
	for right := range g.patterns { // one pattern that matches everything makes the others superfluous
		if slices.Contains(g.patterns[right], "*") {
			g.patterns[right] = []string{"*"}
		}
	}
	return g
}

// May reports whether the process has a right to a name or an endpoint. Connect, Info and Destroy ignore the name.
func (g *Grants) May(right Right, name string) bool {
	switch {
	case g.all:
		return true
	case right == Connect:
		return g.connect
	case right == Info:
		return g.info
	case right >= rights:
		return false
	}
	return slices.ContainsFunc(g.patterns[right], func(pattern string) bool { return Match(pattern, name) })
}

// Patterns returns the patterns of the names for which the process has a right.
func (g *Grants) Patterns(right Right) []string {
	if g.all && List <= right && right <= Offer {
		return []string{"*"}
	}
	if right >= rights {
		return nil
	}
	return slices.Clone(g.patterns[right])
}

// Everything reports whether the process has a right to every name.
func (g *Grants) Everything(right Right) bool {
	return g.all || right < rights && slices.Contains(g.patterns[right], "*")
}

// Match reports whether a pattern matches the whole name. It takes time in proportion to the product of the lengths at
// most.
func Match(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	for {
		var part string
		part, rest, wild = strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part) // the earliest place leaves the most for the others
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
}

// Admits reports which users and groups may connect, for the permissions of a socket. everyone means that neither list
// is complete.
func (p *Policy) Admits() (uids, gids []uint32, everyone bool) {
	for i := range p.Rules {
		r := &p.Rules[i]
		uids, gids, everyone = append(uids, r.UIDs...), append(gids, r.GIDs...), everyone || r.Everyone
	}
	slices.Sort(uids)
	slices.Sort(gids)
	return slices.Compact(uids), slices.Compact(gids), everyone
}
