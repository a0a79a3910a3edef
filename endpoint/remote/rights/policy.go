package rights

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/bytesize"
	"github.com/sharedtensor/sharedtensor/internal/trusted"
)

// rule is one rule of a policy. Rules have the form of those of an owner's policy (sharedtensor serve --policy) and add up
// in the same way.
//
//	rules:
//	  - tokens: [trainer, "ci-*"]        # names in the token file
//	    certificates: ["*.train.local"]  # names in certificates
//	    list: ["*"]
//	    publish: ["llm-*"]
//	    write: ["bin.rollouts"]
//	    quota: {in-flight: 256MiB, uploads: 8GiB, requests: 100, leases: 8}
//	  - everyone: true
//	    call: ["embed"]
//	    metrics: true
type rule struct {
	Tokens       []string `yaml:"tokens"`
	Certificates []string `yaml:"certificates"`
	Everyone     bool     `yaml:"everyone"`

	Info     bool     `yaml:"info"`
	List     []string `yaml:"list"`
	Acquire  []string `yaml:"acquire"`
	Publish  []string `yaml:"publish"`
	Withdraw []string `yaml:"withdraw"`
	Call     []string `yaml:"call"`
	Metrics  bool     `yaml:"metrics"`
	Control  bool     `yaml:"control"`
	Read     []string `yaml:"read"`
	Write    []string `yaml:"write"`

	Quota quota `yaml:"quota"`
}

type quota struct {
	InFlight size    `yaml:"in-flight"`
	Uploads  size    `yaml:"uploads"`
	Requests float64 `yaml:"requests"`
	Leases   int64   `yaml:"leases"`
	Message  size    `yaml:"message"`
}

// size is a number of bytes such as 64MiB.
type size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *size) UnmarshalYAML(node *yaml.Node) error {
	var n bytesize.Size
	if err := n.Set(node.Value); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*b = size(n)
	return nil
}

// maxPolicyBytes limits the file of a policy.
const maxPolicyBytes = 1 << 20

// Read reads and checks a policy. It refuses a file that other users can write, because they could give themselves rights.
func Read(path string) (*Policy, error) {
	data, err := trusted.ReadFile(path, maxPolicyBytes)
	if err != nil {
		return nil, err
	}
	rules, err := parsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Policy{rules: rules}, nil
}

// parsePolicy parses the text of a policy. Unknown keys are errors.
func parsePolicy(data []byte) ([]rule, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var in struct {
		Rules []rule `yaml:"rules"`
	}
	switch err := d.Decode(&in); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty; a policy without rules is rules: []")
	case err != nil:
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document")
	}
	if len(in.Rules) > access.MaxRules {
		return nil, fmt.Errorf("it has %d rules, the limit is %d", len(in.Rules), access.MaxRules)
	}
	for i := range in.Rules {
		if err := in.Rules[i].check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return in.Rules, nil
}

func (r *rule) check() error {
	if len(r.Tokens)+len(r.Certificates) == 0 && !r.Everyone {
		return errors.New("it matches no client: add tokens, certificates or everyone")
	}
	for _, subject := range slices.Concat(r.Read, r.Write) {
		if err := CheckScope(subject); err != nil {
			return err
		}
	}
	if q := r.Quota; q.InFlight < 0 || q.Uploads < 0 || q.Requests < 0 || q.Leases < 0 || q.Message < 0 {
		return errors.New("quota: a limit must not be negative")
	}
	if r.Quota.Message > MaxMessage {
		return fmt.Errorf("quota: a message has at most %v", bytesize.Size(MaxMessage))
	}
	granted := r.owner()
	if policy := (access.Policy{Rules: []access.Rule{granted}}); r.givesOwnerRights() {
		if err := policy.Check(); err != nil {
			return err
		}
	} else if !r.Metrics && !r.Control && len(r.Read)+len(r.Write) == 0 && r.Quota == (quota{}) {
		return errors.New("it gives no right")
	}
	return nil
}

func (r *rule) givesOwnerRights() bool {
	return r.Info || len(r.List)+len(r.Acquire)+len(r.Publish)+len(r.Withdraw)+len(r.Call) > 0
}

// owner returns the rights to models and functions as a rule of an owner's policy.
func (r *rule) owner() access.Rule {
	return access.Rule{Everyone: true, Info: r.Info, List: r.List, Acquire: r.Acquire, Publish: r.Publish, Withdraw: r.Withdraw, Call: r.Call}
}

func (r *rule) matches(id Identity) bool {
	names := r.Tokens
	if id.Method == MethodCertificate {
		names = r.Certificates
	}
	return r.Everyone || slices.ContainsFunc(names, func(pattern string) bool {
		return access.Match(pattern, id.Name) || id.Also != "" && slices.ContainsFunc(strings.Split(id.Also, "\n"), func(name string) bool { return access.Match(pattern, name) })
	})
}

// rightsOf returns the union of the rights of all rules that match an identity. For each quota the first of these rules
// that sets it counts. matched reports whether a rule matches.
func rightsOf(rules []rule, id Identity) (set *Set, matched bool) {
	out := &Set{}
	var owner access.Policy
	for i := range rules {
		r := &rules[i]
		if !r.matches(id) {
			continue
		}
		matched = true
		owner.Rules = append(owner.Rules, r.owner())
		out.Metrics, out.Control = out.Metrics || r.Metrics, out.Control || r.Control
		out.Read, out.Write = append(out.Read, r.Read...), append(out.Write, r.Write...)
		q := &out.Quota
		q.InFlight, q.Uploads = firstSet(q.InFlight, int64(r.Quota.InFlight)), firstSet(q.Uploads, int64(r.Quota.Uploads))
		q.Requests, q.Leases = firstSet(q.Requests, r.Quota.Requests), firstSet(q.Leases, r.Quota.Leases)
		q.Message = firstSet(q.Message, int64(r.Quota.Message))
	}
	out.Grants = owner.Of(access.Subject{})
	if id.ReadOnly { // a read-only token keeps the part that changes nothing
		out.Read, out.Write = append(out.Read, out.Write...), nil
	}
	text, _ := json.Marshal(struct { // cannot fail: strings and numbers only
		Owner            []access.Rule
		Metrics, Control bool
		Read, Write      []string
		Quota            Quota
	}{owner.Rules, out.Metrics, out.Control, out.Read, out.Write, out.Quota})
	out.Text = string(text)
	return out, matched
}

func firstSet[T int64 | float64](set, next T) T {
	if set != 0 {
		return set
	}
	return next
}

// Apply returns an identity with its rights. The error is ErrRight if no rule matches it.
func (p *Policy) Apply(id Identity) (Identity, error) {
	set, matched := p.of(id)
	if !matched {
		return Identity{}, fmt.Errorf("%w: no rule matches %s", ErrRight, strings.TrimSpace(id.Method+" "+cmp.Or(id.Name, id.ID)))
	}
	id.Rights = set
	return id, nil
}

// Scopes returns the scopes of NATS in the rules.
func (p *Policy) Scopes() (list []string) {
	for _, r := range p.rules {
		list = append(append(list, r.Read...), r.Write...)
	}
	return list
}

// maxKnown is the number of identities whose rights are kept. Certificates may have any number of names.
const maxKnown = 4096

// Policy is the content of a policy file, with the rights of identities that the rules were applied to. It is safe for
// concurrent use.
type Policy struct {
	rules []rule

	mu    sync.Mutex
	known map[string]knownRights
}

type knownRights struct {
	set     *Set
	matched bool
}

func (p *Policy) of(id Identity) (set *Set, matched bool) {
	key := fmt.Sprint(id.ReadOnly, id.Key(), "\x00", id.Also)
	p.mu.Lock()
	defer p.mu.Unlock()
	one, found := p.known[key]
	if !found {
		if p.known == nil || len(p.known) >= maxKnown {
			p.known = make(map[string]knownRights)
		}
		one.set, one.matched = rightsOf(p.rules, id)
		p.known[key] = one
	}
	return one.set, one.matched
}
