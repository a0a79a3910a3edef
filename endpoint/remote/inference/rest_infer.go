package inference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// headerLength is the header with the length of the JSON before the elements.
const headerLength = "Inference-Header-Content-Length"

// restRequest is a request in JSON.
type restRequest struct {
	ID         string          `json:"id"`
	Parameters map[string]any  `json:"parameters"`
	Inputs     []restInput     `json:"inputs"`
	Outputs    []restRequested `json:"outputs"`
}

type restInput struct {
	Name       string          `json:"name"`
	Datatype   string          `json:"datatype"`
	Shape      []int64         `json:"shape"`
	Parameters map[string]any  `json:"parameters"`
	Data       json.RawMessage `json:"data"`
}

type restRequested struct {
	Name       string         `json:"name"`
	Parameters map[string]any `json:"parameters"`
}

// inferOverHTTP handles POST /v2/models/{model}[/versions/{version}]/infer.
func (s restService) inferOverHTTP(w http.ResponseWriter, r *http.Request) error {
	charge := s.env.Admission.Requests.Open(rights.Sender(r.Context()))
	defer charge.Close()
	body, finish, err := s.openBody(w, r, charge)
	if err != nil {
		return err
	}
	defer finish()
	in, binary, err := s.readRequest(r, body, charge)
	if err != nil {
		return err
	}
	if err := s.checkClient(r.Context(), in); err != nil {
		return err
	}
	out, err := s.infer(r.Context(), in)
	if err != nil {
		return err
	}
	defer out.outputs.close()
	return s.answer(w, r, out, binary, charge)
}

// openBody limits the size and duration of the body and decompresses it. The caller calls finish.
func (s restService) openBody(w http.ResponseWriter, r *http.Request, charge *admission.Charge) (body io.Reader, finish func(), err error) {
	watched := s.env.Admission.Rate.Reader(http.MaxBytesReader(w, r.Body, s.env.RequestLimit(r.Context())))
	encoding := r.Header.Get("Content-Encoding")
	decoded, err := charge.Decode(watched, encoding)
	if err != nil {
		if !errors.Is(err, admission.ErrEncoding) && !errors.Is(err, admission.ErrLimit) {
			err = errBody(err)
		}
		return nil, nil, err
	}
	if !compressed(r) {
		return watched, func() {}, nil
	}
	return &limitedReader{decoded, s.env.RequestLimit(r.Context())}, func() { _ = decoded.Close() }, nil // best effort: it was only read
}

// compressed reports whether the length of the body differs from that of its content.
func compressed(r *http.Request) bool {
	encoding := r.Header.Get("Content-Encoding")
	return encoding != "" && !strings.EqualFold(encoding, "identity")
}

// limitedReader returns ErrTooLarge if a decompressed body exceeds its limit.
type limitedReader struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), l.left+1)] // one more byte than allowed, to distinguish the limit from the end
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("%w: the decompressed body exceeds the limit of a request: see --max-request", ErrTooLarge)
	}
	return n, err
}

// elementBytes is the memory of an element that is encoded from JSON.
const elementBytes = 24

// readRequest reads a request. Binary elements are left in the body. binary is the encoding of outputs that do not
// specify one.
func (s restService) readRequest(r *http.Request, body io.Reader, charge *admission.Charge) (out *request, binary bool, err error) {
	head, apart, err := readHead(r, body, charge)
	if err != nil {
		return nil, false, err
	}
	if err := charge.Add(admission.JSONBytes(head, elementBytes)); err != nil {
		return nil, false, err
	}
	in, err := parseRequest(head)
	if err != nil {
		return nil, false, fmt.Errorf("%w: the JSON of the request: %w", ErrInvalid, err)
	}
	out = &request{model: r.PathValue("model"), version: r.PathValue("version"), id: in.ID, atEnd: func() error { return bodyEnd(body) }}
	if out.parameters, err = restParameters(in.Parameters); err != nil {
		return nil, false, err
	}
	binary, _ = out.parameters[paramBinaryOutput].(bool)
	for _, one := range in.Inputs {
		t, err := s.inputOf(one, body, apart)
		if err != nil {
			return nil, false, inputError(one.Name, err)
		}
		out.inputs = append(out.inputs, t)
	}
	if err := checkLength(r, len(head), apart, out.inputs); err != nil {
		return nil, false, err
	}
	for _, one := range in.Outputs {
		parameters, err := restParameters(one.Parameters)
		if err != nil {
			return nil, false, err
		}
		w, err := wantedOf(one.Name, parameters)
		if err != nil {
			return nil, false, err
		}
		out.outputs = append(out.outputs, w)
	}
	return out, binary, nil
}

// parseRequest parses the JSON of a request. It accepts NaN and Infinity, which are not JSON, because Triton's clients
// send them.
func parseRequest(text []byte) (in restRequest, err error) {
	parse := func(text []byte) error {
		in = restRequest{}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&in); err != nil {
			return err
		}
		return onlyValue(d)
	}
	if err = parse(text); err != nil {
		if replaced, ok := nonfinite.Replace(text, strconv.Quote); ok {
			err = parse(replaced)
		}
	}
	return in, err
}

// onlyValue returns an error if something follows the value that d has decoded.
func onlyValue(d *json.Decoder) error {
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text follows the JSON object")
	}
	return nil
}

// bodyEnd returns an error unless the body ends here: if bytes are left, if the transfer was broken off, or if
// decompressed data does not match its checksum.
func bodyEnd(body io.Reader) error {
	n, err := io.ReadFull(body, make([]byte, 1))
	switch {
	case n > 0:
		return fmt.Errorf("%w: the body has bytes beyond the inputs' %s", ErrInvalid, paramBinarySize)
	case errors.Is(err, io.EOF):
		return nil
	}
	return errBody(err)
}

// readHead reads the JSON of a request: the whole body, or the length in a header. apart reports whether elements
// follow it.
func readHead(r *http.Request, body io.Reader, charge *admission.Charge) (head []byte, apart bool, err error) {
	text := r.Header.Get(headerLength)
	if text == "" {
		if head, err = charge.ReadAll(body); err != nil {
			err = errBody(err)
		}
		return head, false, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return nil, false, fmt.Errorf("%w: %s is not a number of bytes", ErrInvalid, headerLength)
	}
	// Memory is charged as it arrives, not as announced by a header.
	head, err = charge.ReadAll(io.LimitReader(body, n))
	if err == nil && int64(len(head)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		err = errBody(err)
	}
	return head, true, err
}

// checkLength checks that the length of an uncompressed body matches its JSON.
func checkLength(r *http.Request, head int, apart bool, inputs []inputTensor) error {
	if !apart || r.ContentLength < 0 || compressed(r) {
		return nil
	}
	left := r.ContentLength - int64(head)
	for _, in := range inputs {
		if s, ok := in.data.(*streamSource); ok {
			if left -= min(s.left, left+1); left < 0 {
				break
			}
		}
	}
	if left != 0 {
		return fmt.Errorf("%w: the body has %d bytes, which does not match its JSON and the inputs' %s", ErrInvalid, r.ContentLength, paramBinarySize)
	}
	return nil
}

// inputOf reads an input. Its elements are in the JSON, in the body or in shared memory.
func (s restService) inputOf(in restInput, body io.Reader, apart bool) (inputTensor, error) {
	t := inputTensor{name: in.Name, datatype: in.Datatype, shape: in.Shape}
	parameters, err := restParameters(in.Parameters)
	if err != nil {
		return t, err
	}
	if t.region, err = claimOf(parameters); err != nil {
		return t, err
	}
	if size, there := parameters[paramBinarySize]; there {
		n, ok := integerOf(size)
		switch {
		case !ok || n < 0:
			return t, fmt.Errorf("%w: %s must be a number of bytes", ErrInvalid, paramBinarySize)
		case !apart && n > 0:
			return t, fmt.Errorf("%w: %s requires the header %s", ErrInvalid, paramBinarySize, headerLength)
		case in.Data != nil:
			return t, fmt.Errorf("%w: use either data or %s", ErrInvalid, paramBinarySize)
		}
		t.data = &streamSource{r: body, left: n}
		return t, nil
	}
	if in.Data != nil {
		raw, err := parseElements(in.Data, in.Datatype, in.Shape)
		if err != nil {
			return t, err
		}
		t.data = &memorySource{raw}
	}
	return t, nil
}

// restParameters converts JSON values to parameters.
func restParameters(in map[string]any) (map[string]any, error) {
	for name, v := range in {
		switch v := v.(type) {
		case bool, string:
		case json.Number:
			if v == "-0" {
				in[name] = math.Copysign(0, -1) // encoders write -0.0 like this
			} else if i, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
				in[name] = i
			} else if u, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
				in[name] = u
			} else if f, err := v.Float64(); err == nil {
				in[name] = f
			} else {
				return nil, fmt.Errorf("%w: parameter '%s' does not fit into 64 bits", ErrInvalid, clip(name))
			}
		default:
			return nil, fmt.Errorf("%w: parameter '%s' must be a number, a text, true or false", ErrInvalid, clip(name))
		}
	}
	return in, nil
}

// restResponse is a response in JSON.
type restResponse struct {
	ModelName    string         `json:"model_name"`
	ModelVersion string         `json:"model_version,omitempty"`
	ID           string         `json:"id,omitempty"`
	Parameters   map[string]any `json:"parameters,omitempty"`
	Outputs      []restOutput   `json:"outputs"`
}

type restOutput struct {
	Name       string          `json:"name"`
	Datatype   string          `json:"datatype"`
	Shape      []int64         `json:"shape"`
	Parameters map[string]any  `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

// answer sends a response: JSON, followed by the elements of binary outputs.
func (s restService) answer(w http.ResponseWriter, r *http.Request, res *response, binary bool, charge *admission.Charge) error {
	head := restResponse{ModelName: res.model, ModelVersion: res.version, ID: res.id, Parameters: res.parameters, Outputs: []restOutput{}}
	var parts [][]byte
	length := 0
	for _, o := range res.outputs {
		one := restOutput{Name: o.name, Datatype: o.datatype, Shape: o.shape}
		data, err := o.data()
		if err != nil {
			return err
		}
		asBytes := binary
		if o.wanted.binary != nil {
			asBytes = *o.wanted.binary
		}
		switch {
		case o.region != nil:
			one.Parameters = o.region.parameters()
		case asBytes:
			one.Parameters = map[string]any{paramBinarySize: len(data)}
			parts = append(parts, data)
			length += len(data)
		default:
			if one.Data, err = formatElements(data, o.datatype); err != nil {
				return fmt.Errorf("output '%s': %w", o.name, err)
			}
			if err := charge.Add(2 * int64(len(one.Data))); err != nil {
				return err
			}
		}
		head.Outputs = append(head.Outputs, one)
	}
	text, err := json.Marshal(head)
	text = bareWords(text)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if parts != nil {
		h.Set("Content-Type", "application/octet-stream")
		h.Set(headerLength, strconv.Itoa(len(text)))
	}
	parts = append([][]byte{text}, parts...)
	if encoding := chooseEncoding(r, parts, len(text)+length); encoding != "" {
		h.Set("Content-Encoding", encoding)
		compress(w, encoding, parts)
		return nil
	}
	h.Set("Content-Length", strconv.Itoa(len(text)+length))
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return nil // the client has left
		}
	}
	return nil
}
