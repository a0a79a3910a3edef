package modelwire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Errors of transfers, wrapped with details.
var (
	// ErrInvalid reports an invalid manifest, piece or request.
	ErrInvalid = admission.NewError(admission.Invalid, "invalid transfer")
	// ErrLimit reports a transfer over one of its limits.
	ErrLimit = admission.NewError(admission.Limit, "limit reached")
)

// Limits limits the memory of a version.
type Limits struct {
	// Bytes limits the memory of all tensors, TensorBytes the size of one, and Tensors their number. 0 means no limit,
	// except that a version never has more than [MaxTensors].
	Bytes, TensorBytes int64
	Tensors            int
}

// MaxTensors limits the tensors of a version.
const MaxTensors = 1 << 20

// Manifest describes the tensors of a version.
type Manifest struct {
	Name    string
	Version uint64
	// ServerID identifies the owner, whose versions are numbered.
	ServerID string
	Metadata map[string]string
	Tensors  []Entry
	// Bytes is the size of all tensors that are not tied to another.
	Bytes int64
	// Hash is the hash function of the entries' digests, and Digested reports whether they are known.
	Hash     Hash
	Digested bool
}

// Entry describes one tensor.
type Entry struct {
	module.NamedSpec
	Bytes int64
	// TensorSums is the digest; for tied names, the digest of the tensor that they are tied to.
	TensorSums
}

// check validates the entries before memory is allocated for them and sets their sizes. Names are unique, tied names
// refer to an earlier tensor of the same kind, and the total size is within the limits.
func (m *Manifest) check(l Limits) error {
	if n := len(m.Tensors); l.Tensors > 0 && n > l.Tensors || n > MaxTensors {
		return fmt.Errorf("%w: %d tensors", ErrLimit, n)
	}
	m.Bytes = 0
	byName := make(map[string]int, len(m.Tensors))
	for i := range m.Tensors {
		e := &m.Tensors[i]
		if err := m.checkEntry(e, byName); err != nil {
			return fmt.Errorf("tensor %q: %w", shortened(e.Name), err)
		}
		byName[e.Name] = i
		if e.TiedTo != "" {
			continue
		}
		if l.TensorBytes > 0 && e.Bytes > l.TensorBytes {
			return fmt.Errorf("tensor %q: %w: %d bytes are more than %d", shortened(e.Name), ErrLimit, e.Bytes, l.TensorBytes)
		}
		// The gaps in the slab count too; otherwise a million empty tensors would have size 0.
		if l.Bytes > 0 && e.Bytes > l.Bytes-m.Bytes-int64(i)*module.Alignment {
			return fmt.Errorf("%w: more than %d bytes", ErrLimit, l.Bytes)
		}
		m.Bytes += e.Bytes
	}
	return nil
}

func (m *Manifest) checkEntry(e *Entry, byName map[string]int) (err error) {
	if e.Bytes, err = (tensor.Spec{DType: e.DType, Shape: e.Shape}).ByteLen(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, twice := byName[e.Name]; twice {
		return fmt.Errorf("%w: two tensors have this name", ErrInvalid)
	}
	if e.Name == "" {
		return fmt.Errorf("%w: the name is empty", ErrInvalid)
	}
	if e.TiedTo == "" {
		return nil
	}
	at, found := byName[e.TiedTo]
	if !found || m.Tensors[at].DType != e.DType || !m.Tensors[at].Shape.Equal(e.Shape) || m.Tensors[at].TiedTo != "" {
		return fmt.Errorf("%w: tied to %q, which is not an earlier tensor of the same type and shape", ErrInvalid, shortened(e.TiedTo))
	}
	e.TensorSums = m.Tensors[at].TensorSums
	return nil
}

// NewManifest returns the manifest of tensors with the given specs. It fails with ErrInvalid and ErrLimit.
func NewManifest(specs []module.NamedSpec, metadata map[string]string, l Limits) (*Manifest, error) {
	m := &Manifest{Metadata: metadata, Tensors: make([]Entry, len(specs))}
	for i := range specs {
		m.Tensors[i].NamedSpec = specs[i]
	}
	return m, m.check(l)
}

// ManifestOfFile returns the manifest of the tensors of safetensors files.
func ManifestOfFile(model *safetensors.Model, l Limits) (*Manifest, error) {
	return NewManifest(Specs(model), model.Metadata, l)
}

// place identifies the memory of a tensor, to find tied names.
type place struct {
	storage uint32
	offset  int64
	dtype   tensor.DType
	shape   string
	strides string
}

// ManifestOf returns the manifest of a version at an owner. The digests that its publisher claimed are used if all
// tensors have one.
func ManifestOf(name string, version uint64, server string, published *module.Manifest) (*Manifest, error) {
	m := &Manifest{
		Name: name, Version: version, ServerID: server, Metadata: published.Metadata, Tensors: make([]Entry, len(published.Tensors)), Digested: true,
	}
	first := map[place]string{}
	for i := range published.Tensors {
		t, e := &published.Tensors[i], &m.Tensors[i]
		e.NamedSpec = module.NamedSpec{Name: t.Name, DType: t.DType, Shape: t.Shape}
		if t.Digest != nil {
			e.Sum = *t.Digest
		} else {
			m.Digested = false
		}
		at := place{t.Storage, t.ByteOffset, t.DType, t.Shape.String(), fmt.Sprint(t.Strides)}
		if kept, tied := first[at]; tied && !slices.Contains(t.Shape, 0) {
			e.TiedTo = kept
		} else {
			first[at] = t.Name
		}
	}
	return m, m.check(Limits{})
}

// Specs returns the specs from which a state dict is created.
func (m *Manifest) Specs() []module.NamedSpec {
	out := make([]module.NamedSpec, len(m.Tensors))
	for i := range m.Tensors {
		out[i] = m.Tensors[i].NamedSpec
	}
	return out
}

// Digest returns the digest of the whole model, which depends on the names, types, shapes and digests of its tensors.
// With SHA-256 it is that of [module.StateDictDigest]. The digests of the tensors must be known.
func (m *Manifest) Digest() Digest {
	order := make([]int, len(m.Tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(m.Tensors[a].Name, m.Tensors[b].Name) })
	h := m.Hash.New()
	for _, i := range order {
		t := &m.Tensors[i]
		fmt.Fprintf(h, "%d:%s %v %v ", len(t.Name), t.Name, t.DType, []int64(t.Shape))
		_, _ = h.Write(t.Sum[:]) // a hash never fails
	}
	return Digest{m.Hash, Sum(h.Sum(nil))}
}

// TieDigests sets the digests of tied names to those of their tensors. All digests are then known.
func (m *Manifest) TieDigests() {
	digests := map[string]TensorSums{}
	for i := range m.Tensors {
		if e := &m.Tensors[i]; e.TiedTo == "" {
			digests[e.Name] = e.TensorSums
		} else {
			e.TensorSums = digests[e.TiedTo]
		}
	}
	m.Digested = true
}

// manifestJSON is the JSON of a manifest.
type manifestJSON struct {
	Name     string            `json:"name"`
	Version  uint64            `json:"version"`
	ServerID string            `json:"server_id"`
	Bytes    int64             `json:"bytes"`
	Tensors  []entryJSON       `json:"tensors"`
	Metadata map[string]string `json:"metadata,omitempty"`
	URL      string            `json:"url"`
}

// entryJSON is the JSON of an entry. SHA256 and BLAKE3 are in hexadecimal and empty if unknown or tied. BLAKE3 is the
// concatenation of the hashes of all chunks.
type entryJSON struct {
	Name   string       `json:"name"`
	DType  string       `json:"dtype"`
	Shape  tensor.Shape `json:"shape"`
	Bytes  int64        `json:"bytes"`
	TiedTo string       `json:"tied_to,omitempty"`
	SHA256 string       `json:"sha256,omitempty"`
	BLAKE3 *string      `json:"blake3,omitempty"`
	URL    string       `json:"url"`
}

// MarshalJSON implements json.Marshaler. It adds the URLs of the model's file and its tensors.
func (m *Manifest) MarshalJSON() ([]byte, error) {
	base := VersionPath(m.Name, m.Version)
	out := manifestJSON{
		Name: m.Name, Version: m.Version, ServerID: m.ServerID, Bytes: m.Bytes, Metadata: m.Metadata, URL: base + "/model.safetensors",
		Tensors: make([]entryJSON, len(m.Tensors)),
	}
	for i := range m.Tensors {
		e := &m.Tensors[i]
		one := entryJSON{Name: e.Name, DType: e.DType.String(), Shape: append(tensor.Shape{}, e.Shape...), Bytes: e.Bytes, TiedTo: e.TiedTo, URL: TensorPath(m.Name, m.Version, e.Name)}
		switch {
		case !m.Digested || e.TiedTo != "":
		case m.Hash == BLAKE3:
			text := make([]byte, 0, 2*len(e.Sum)*len(e.Chunks))
			for _, sum := range e.Chunks {
				text = hex.AppendEncode(text, sum[:])
			}
			sums := string(text)
			one.BLAKE3 = &sums
		default:
			one.SHA256 = e.Sum.String()
		}
		out.Tensors[i] = one
	}
	return json.Marshal(&out)
}

// ParseManifest parses and validates a manifest of a peer, in which all tensors have a digest of the same hash function.
// It fails with ErrInvalid and ErrLimit.
func ParseManifest(text []byte, l Limits) (*Manifest, error) {
	var raw manifestJSON
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("%w: the manifest: %w", ErrInvalid, err)
	}
	if len(raw.Tensors) > MaxTensors {
		return nil, fmt.Errorf("%w: %d tensors", ErrLimit, len(raw.Tensors))
	}
	if raw.Version == 0 {
		return nil, fmt.Errorf("%w: the manifest has no version", ErrInvalid)
	}
	m := &Manifest{
		Name: raw.Name, Version: raw.Version, ServerID: raw.ServerID, Metadata: raw.Metadata, Tensors: make([]Entry, len(raw.Tensors)), Digested: true,
	}
	for i := range raw.Tensors {
		if raw.Tensors[i].BLAKE3 != nil {
			m.Hash = BLAKE3
		}
	}
	for i := range raw.Tensors {
		if err := m.Tensors[i].parse(&raw.Tensors[i], m.Hash); err != nil {
			return nil, fmt.Errorf("tensor %q: %w: %w", shortened(raw.Tensors[i].Name), ErrInvalid, err)
		}
	}
	if err := m.check(l); err != nil {
		return nil, err
	}
	for i := range m.Tensors {
		if e := &m.Tensors[i]; e.Bytes != raw.Tensors[i].Bytes || m.Hash == BLAKE3 && len(e.Chunks) != chunks(e.Bytes) {
			return nil, fmt.Errorf("tensor %q: %w: %v of shape %v has %d bytes, the manifest has %d bytes and %d chunks", shortened(e.Name), ErrInvalid, e.DType, e.Shape, e.Bytes, raw.Tensors[i].Bytes, len(e.Chunks))
		}
	}
	return m, nil
}

func (e *Entry) parse(raw *entryJSON, h Hash) error {
	dt, err := tensor.ParseDType(raw.DType)
	if err != nil {
		return err
	}
	e.NamedSpec = module.NamedSpec{Name: raw.Name, DType: dt, Shape: raw.Shape, TiedTo: raw.TiedTo}
	if e.Hash = h; raw.TiedTo != "" {
		return nil
	}
	text := raw.SHA256
	if h == BLAKE3 {
		if raw.BLAKE3 == nil {
			return errors.New("no BLAKE3")
		}
		text = *raw.BLAKE3
	}
	sums, err := hex.DecodeString(text)
	if err != nil || len(sums)%len(e.Sum) != 0 || h == SHA256 && len(sums) != len(e.Sum) {
		return fmt.Errorf("no %v", h)
	}
	if h == SHA256 {
		e.Sum = Sum(sums)
		return nil
	}
	for one := range slices.Chunk(sums, len(e.Sum)) {
		e.Chunks = append(e.Chunks, Sum(one))
	}
	e.Digest = root(e.Chunks)
	return nil
}

// shortened shortens text of a peer for an error.
func shortened(text string) string {
	if len(text) > 200 {
		return strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
