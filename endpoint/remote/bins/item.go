package bins

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Value is the content of an item to store.
type Value struct {
	// Type is the media type of Body, for example "application/json". It has at most 256 bytes.
	Type string
	// Meta is metadata that readers can use without the body. Keys and values have at most 4 KiB in total.
	Meta map[string]string
	// Body is borrowed until the call that stores it returns.
	Body []byte
}

// Item is one stored value. The reader owns it.
type Item struct {
	Value
	// Sequence orders all items of a namespace and is never reused.
	Sequence uint64
	// Time is when the server stored the item.
	Time time.Time
	// Put reports whether the item was put, which replaced all earlier items. Otherwise it was appended.
	Put bool
}

// Operations in the headers of messages.
const (
	opPut    = "put"
	opAppend = "append"
	opTake   = "take"
	opDelete = "delete"
	// opSettled marks the message that replaces a claim after its items are removed from the stream. It expires.
	opSettled = "settled"
)

// Message headers.
const (
	headerOp     = "Bin-Op"
	headerType   = "Bin-Type"
	headerMeta   = "Bin-Meta"
	headerSize   = "Bin-Size"
	headerDigest = "Bin-Sha256"
	headerObject = "Bin-Object"
	headerList   = "Bin-List"   // "1": the body is a JSON array whose elements are the items
	headerUpTo   = "Bin-Up-To"  // in claims: sequence number of the newest removed item
	headerItems  = "Bin-Items"  // in claims: number of removed items
	headerBefore = "Bin-Before" // in claims: sequence number of the replaced claim
	headerClaim  = "Bin-Claim"  // in settled messages: operation of the replaced claim
	headerSince  = "Bin-Since"  // in settled messages: sequence number of the claim before the replaced one
)

const (
	maxTypeBytes   = 256
	maxMetaBytes   = 4 << 10
	maxHeaderBytes = 16 << 10 // all headers of a message, including NATS's own
)

func (v Value) check(o Options) error {
	if int64(len(v.Body)) > o.MaxItemBytes {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(v.Body), o.MaxItemBytes)
	}
	if len(v.Type) > maxTypeBytes {
		return fmt.Errorf("%w: its type has %d bytes, the limit is %d", ErrTooLarge, len(v.Type), maxTypeBytes)
	}
	total := 0
	for key, value := range v.Meta {
		total += len(key) + len(value)
	}
	if total > maxMetaBytes {
		return fmt.Errorf("%w: its metadata has %d bytes, the limit is %d", ErrTooLarge, total, maxMetaBytes)
	}
	return nil
}

// message returns the message of a value without its body.
func (v Value) message(subject, op string) (*nats.Msg, error) {
	msg := nats.NewMsg(subject)
	msg.Header.Set(headerOp, op)
	msg.Header.Set(headerSize, strconv.Itoa(len(v.Body)))
	if v.Type != "" {
		msg.Header.Set(headerType, strconv.QuoteToASCII(v.Type))
	}
	if len(v.Meta) > 0 {
		text, err := json.Marshal(v.Meta)
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		msg.Header.Set(headerMeta, strconv.QuoteToASCII(string(text)))
	}
	return msg, nil
}

// stored is a message of a bin or queue. Its body may be in the object store.
type stored struct {
	item   Item
	op     string
	size   int64
	object string // name in the object store; "" if the body is inline
	digest [sha256.Size]byte
	list   bool   // each element of the body is an item
	id     string // message id
	damage error  // ErrCorrupt if the headers are invalid

	claim  bool   // the message removes items
	upTo   uint64 // in claims: newest removed item
	items  int    // in claims: number of removed items
	before uint64 // in claims: the claim that it replaced
}

// parseStored parses the headers of an item. An inline body is not copied. A damaged message becomes an item with
// damage set, so its bin can be listed and deleted.
func parseStored(header nats.Header, body []byte, sequence uint64, at time.Time) stored {
	m := stored{op: header.Get(headerOp), id: natslink.MessageID(header), object: header.Get(headerObject)}
	m.item = Item{Sequence: sequence, Time: at, Put: m.op == opPut}
	if m.op == opPut || m.op == opAppend {
		m.damage = m.parseItem(header, body)
	} else {
		m.damage = fmt.Errorf("%w: message %d is not an item", ErrCorrupt, sequence)
	}
	return m
}

// parseClaim parses the headers of a claim. A damaged claim removes nothing.
func parseClaim(header nats.Header, sequence uint64, at time.Time) stored {
	m := stored{claim: true, op: header.Get(headerOp), id: natslink.MessageID(header), item: Item{Sequence: sequence, Time: at}}
	if upTo, err := strconv.ParseUint(header.Get(headerUpTo), 10, 64); err == nil && upTo < sequence {
		m.upTo = upTo
	}
	m.items, _ = strconv.Atoi(header.Get(headerItems))
	m.before, _ = strconv.ParseUint(header.Get(headerBefore), 10, 64)
	return m
}

func (m *stored) parseItem(header nats.Header, body []byte) (err error) {
	m.list = header.Get(headerList) == "1"
	if text := header.Get(headerType); text != "" {
		if m.item.Type, err = strconv.Unquote(text); err != nil {
			return fmt.Errorf("%w: invalid type of item %d", ErrCorrupt, m.item.Sequence)
		}
	}
	if text := header.Get(headerMeta); text != "" {
		if text, err = strconv.Unquote(text); err == nil {
			err = json.Unmarshal([]byte(text), &m.item.Meta)
		}
		if err != nil {
			return fmt.Errorf("%w: invalid metadata of item %d", ErrCorrupt, m.item.Sequence)
		}
	}
	if m.size, err = strconv.ParseInt(header.Get(headerSize), 10, 64); err != nil || m.size < 0 {
		return fmt.Errorf("%w: invalid size of item %d", ErrCorrupt, m.item.Sequence)
	}
	if m.object == "" {
		m.item.Body = body
		return nil
	}
	sum, err := hex.DecodeString(header.Get(headerDigest))
	if err != nil || copy(m.digest[:], sum) != sha256.Size {
		return fmt.Errorf("%w: invalid digest of item %d", ErrCorrupt, m.item.Sequence)
	}
	return nil
}

// appendElements appends each element of a list as a separate item.
func appendElements(items []Item, list Item) ([]Item, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(list.Body, &elements); err != nil {
		return nil, fmt.Errorf("%w: item %d is not a list: %w", ErrCorrupt, list.Sequence, err)
	}
	for _, element := range elements {
		one := list
		one.Body = element
		items = append(items, one)
	}
	return items, nil
}
