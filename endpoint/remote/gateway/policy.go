package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// policyFile gives tokens and certificates rights by their names. Its rules have the form of those of an owner's policy
// (sharedtensor serve --policy) and add up in the same way. It is reloaded when it changes.
//
//	rules:
//	  - tokens: [trainer, "ci-*"]        # names in the token file
//	    certificates: ["*.train.local"]  # common names
//	    list: ["*"]
//	    publish: ["llm-*"]
//	    write: ["bin.rollouts"]
//	    quota: {in-flight: 256MiB, uploads: 8GiB, requests: 100, leases: 8}
//	  - everyone: true
//	    call: ["embed"]
//	    metrics: true
type policyFile struct {
	set *reloaded[*policySet]
}

// policyRule is one rule of a policy.
type policyRule struct {
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

	Quota policyQuota `yaml:"quota"`
}

type policyQuota struct {
	InFlight policyBytes `yaml:"in-flight"`
	Uploads  policyBytes `yaml:"uploads"`
	Requests float64     `yaml:"requests"`
	Leases   int64       `yaml:"leases"`
	Message  policyBytes `yaml:"message"`
}

// policyBytes is a number of bytes such as 64MiB.
type policyBytes int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *policyBytes) UnmarshalYAML(node *yaml.Node) error {
	var size ByteSize
	if err := size.Set(node.Value); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*b = policyBytes(size)
	return nil
}

func openPolicyFile(path string, log *slog.Logger) (*policyFile, error) {
	set, err := newReloaded("policy", log, func() (*policySet, error) {
		rules, err := readPolicy(path)
		return &policySet{rules: rules}, err
	}, path)
	if err != nil {
		return nil, err
	}
	return &policyFile{set}, nil
}

// readPolicy reads and checks a policy. It refuses a file that other users can write, because they could give themselves
// rights.
func readPolicy(path string) ([]policyRule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // best effort: the file was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s has mode %#o: others may write it; run chmod go-w on it", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxConfigBytes)
	}
	rules, err := parsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rules, nil
}

// parsePolicy parses the text of a policy. Unknown keys are errors.
func parsePolicy(data []byte) ([]policyRule, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var in struct {
		Rules []policyRule `yaml:"rules"`
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

func (r *policyRule) check() error {
	if len(r.Tokens)+len(r.Certificates) == 0 && !r.Everyone {
		return errors.New("it matches no client: add tokens, certificates or everyone")
	}
	for _, subject := range slices.Concat(r.Read, r.Write) {
		if err := natslink.CheckScope(subject); err != nil {
			return err
		}
	}
	if q := r.Quota; q.InFlight < 0 || q.Uploads < 0 || q.Requests < 0 || q.Leases < 0 || q.Message < 0 {
		return errors.New("quota: a limit must not be negative")
	}
	if r.Quota.Message > admission.MaxMessage {
		return fmt.Errorf("quota: a message has at most %v", ByteSize(admission.MaxMessage))
	}
	owner := r.owner()
	if policy := (access.Policy{Rules: []access.Rule{owner}}); r.givesOwnerRights() {
		if err := policy.Check(); err != nil {
			return err
		}
	} else if !r.Metrics && !r.Control && len(r.Read)+len(r.Write) == 0 && r.Quota == (policyQuota{}) {
		return errors.New("it gives no right")
	}
	return nil
}

func (r *policyRule) givesOwnerRights() bool {
	return r.Info || len(r.List)+len(r.Acquire)+len(r.Publish)+len(r.Withdraw)+len(r.Call) > 0
}

// owner returns the rights to models and functions as a rule of an owner's policy.
func (r *policyRule) owner() access.Rule {
	return access.Rule{Everyone: true, Info: r.Info, List: r.List, Acquire: r.Acquire, Publish: r.Publish, Withdraw: r.Withdraw, Call: r.Call}
}

func (r *policyRule) matches(id Identity) bool {
	names := r.Tokens
	if id.Method == admission.MethodCertificate {
		names = r.Certificates
	}
	return r.Everyone || slices.ContainsFunc(names, func(pattern string) bool { return access.Match(pattern, id.Name) })
}

// rightsOf returns the union of the rights of all rules that match an identity. For each quota the first of these rules
// that sets it counts. matched reports whether a rule matches.
func rightsOf(rules []policyRule, id Identity) (rights *admission.Rights, matched bool) {
	out := &admission.Rights{}
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
		Quota            admission.Quota
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

// apply returns an identity with its rights. The error is admission.ErrRight if no rule matches it.
func (f *policyFile) apply(id Identity) (Identity, error) {
	rights, matched := f.set.get().of(id)
	if !matched {
		return Identity{}, fmt.Errorf("%w: no rule matches %s", admission.ErrRight, strings.TrimSpace(id.Method+" "+orString(id.Name, id.ID)))
	}
	id.Rights = rights
	return id, nil
}

// scopes returns the scopes of NATS in the rules.
func (f *policyFile) scopes() (list []string) {
	for _, r := range f.set.get().rules {
		list = append(append(list, r.Read...), r.Write...)
	}
	return list
}

// maxKnown is the number of identities whose rights are kept. Certificates may have any number of names.
const maxKnown = 4096

// policySet is the content of a policy file, with the rights of identities that the rules were applied to.
type policySet struct {
	rules []policyRule

	mu    sync.Mutex
	known map[string]knownRights
}

type knownRights struct {
	rights  *admission.Rights
	matched bool
}

func (s *policySet) of(id Identity) (rights *admission.Rights, matched bool) {
	key := fmt.Sprint(id.ReadOnly, id.Key())
	s.mu.Lock()
	defer s.mu.Unlock()
	one, found := s.known[key]
	if !found {
		if s.known == nil || len(s.known) >= maxKnown {
			s.known = make(map[string]knownRights)
		}
		one.rights, one.matched = rightsOf(s.rules, id)
		s.known[key] = one
	}
	return one.rights, one.matched
}
