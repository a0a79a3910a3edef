package inference

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// maxControlBytes limits the body of a request other than inference.
const maxControlBytes = 1 << 20

// restService serves HTTP.
type restService struct{ *service }

// register adds the routes.
func (s restService) register(mux gateway.Mux) {
	for pattern, handle := range map[string]restHandler{
		"GET /v2":                   s.serverMetadata,
		"GET /v2/{$}":               s.serverMetadata,
		"GET /v2/health/live":       s.live,
		"GET /v2/health/ready":      s.serverReady,
		"GET /v2/models/stats":      s.stats,
		"POST /v2/repository/index": s.repositoryIndex,
	} {
		mux.Handle(pattern, handle)
	}
	s.registerRegions(mux, "/v2/systemsharedmemory", s.systemStatus, s.systemRegister, s.systemUnregister)
	s.registerRegions(mux, "/v2/cudasharedmemory", s.cudaStatus, s.cudaRegister, s.cudaUnregister)
	for _, at := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		mux.Handle("GET "+at, restHandler(s.modelMetadata))
		mux.Handle("GET "+at+"/ready", restHandler(s.modelReadiness))
		mux.Handle("GET "+at+"/config", restHandler(s.modelConfig))
		mux.Handle("GET "+at+"/stats", restHandler(s.stats))
		mux.Handle("POST "+at+"/infer", restHandler(s.inferOverHTTP))
	}
	s.registerSettings(mux)
	mux.Handle("POST /v2/repository/models/{model}/load", restHandler(s.load))
	mux.Handle("POST /v2/repository/models/{model}/unload", restHandler(s.unload))
}

// registerRegions adds the routes of one kind of shared memory, for all regions and for one region.
func (s restService) registerRegions(mux gateway.Mux, at string, status, register, unregister restHandler) {
	for _, which := range []string{at, at + "/region/{region}"} {
		mux.Handle("GET "+which+"/status", status)
		mux.Handle("POST "+which+"/unregister", unregister)
	}
	mux.Handle("POST "+at+"/region/{region}/register", register)
}

// restHandler is a handler. Its errors are sent in the protocol's format.
type restHandler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (h restHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		answerJSON(w, admission.KindOf(err).HTTP, map[string]string{"error": err.Error()})
	}
}

// answerJSON sends a JSON value.
func answerJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be put into JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // best effort: the client may have left
}

// control decodes the body of a request other than inference. An empty body is an empty object.
func (s restService) control(w http.ResponseWriter, r *http.Request, into any) error {
	charge := s.env.Admission.Requests.Open(rights.Sender(r.Context()))
	defer charge.Close()
	decoded, err := charge.Decode(http.MaxBytesReader(w, r.Body, maxControlBytes), r.Header.Get("Content-Encoding"))
	if errors.Is(err, admission.ErrEncoding) || errors.Is(err, admission.ErrLimit) {
		return err
	} else if err != nil {
		return errBody(err)
	}
	defer decoded.Close() // best effort: it was only read
	text, err := charge.ReadAll(&limitedReader{decoded, maxControlBytes})
	if err != nil {
		return errBody(err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%w: invalid JSON body: %w", ErrInvalid, err)
	}
	return nil
}

func (s restService) live(w http.ResponseWriter, _ *http.Request) error {
	answerJSON(w, http.StatusOK, map[string]bool{"live": true})
	return nil
}

func (s restService) serverReady(w http.ResponseWriter, r *http.Request) error {
	err := s.ready()
	if err != nil && !rights.IdentityFrom(r.Context()).Known() {
		return endpoint.ErrUnavailable // the error names the owner's socket
	}
	if err == nil {
		answerJSON(w, http.StatusOK, map[string]bool{"ready": true})
	}
	return err
}

func (s restService) serverMetadata(w http.ResponseWriter, _ *http.Request) error {
	answerJSON(w, http.StatusOK, map[string]any{"name": s.name, "version": s.env.Version, "extensions": s.extensions()})
	return nil
}

// restTensor describes a tensor in a model's metadata.
type restTensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

func restTensors(list []port) []restTensor {
	all := make([]restTensor, len(list))
	for i, p := range list {
		all[i] = restTensor{p.name, p.datatype, p.shape}
	}
	return all
}

func (s restService) modelMetadata(w http.ResponseWriter, r *http.Request) error {
	m, versions, _, err := s.describe(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, map[string]any{
		"name": m.name, "versions": versions, "platform": platform, "inputs": restTensors(m.inputs), "outputs": restTensors(m.outputs),
	})
	return nil
}

func (s restService) modelReadiness(w http.ResponseWriter, r *http.Request) error {
	m, err := s.models.find(r.Context(), r.PathValue("model"))
	if err == nil {
		_, err = s.models.choose(r.Context(), m, r.PathValue("version"))
	}
	if err == nil {
		answerJSON(w, http.StatusOK, map[string]any{"name": m.name, "ready": true})
	}
	return err
}

func (s restService) modelConfig(w http.ResponseWriter, r *http.Request) error {
	c, err := s.config(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	type io struct {
		Name     string  `json:"name"`
		DataType string  `json:"data_type"`
		Dims     []int64 `json:"dims"`
		Optional bool    `json:"optional,omitempty"`
	}
	input, output := []io{}, []io{}
	for _, p := range c.GetInput() {
		input = append(input, io{p.GetName(), p.GetDataType().String(), p.GetDims(), p.GetOptional()})
	}
	for _, p := range c.GetOutput() {
		output = append(output, io{p.GetName(), p.GetDataType().String(), p.GetDims(), false})
	}
	out := map[string]any{
		"name": c.GetName(), "platform": c.GetPlatform(), "backend": c.GetBackend(), "max_batch_size": c.GetMaxBatchSize(), "input": input, "output": output,
		"version_policy":           map[string]any{"specific": map[string]any{"versions": c.GetVersionPolicy().GetSpecific().GetVersions()}},
		"model_transaction_policy": map[string]bool{"decoupled": c.GetModelTransactionPolicy().GetDecoupled()},
		"response_cache":           map[string]bool{"enable": c.GetResponseCache().GetEnable()},
	}
	if d := c.GetDynamicBatching(); d != nil {
		out["dynamic_batching"] = map[string]any{"preferred_batch_size": []int{}, "max_queue_delay_microseconds": d.GetMaxQueueDelayMicroseconds()}
	}
	answerJSON(w, http.StatusOK, out)
	return nil
}

// restDuration is the count and total time of an operation.
type restDuration struct {
	Count uint64 `json:"count"`
	NS    uint64 `json:"ns"`
}

func durationOf(d *pb.StatisticDuration) restDuration { return restDuration{d.GetCount(), d.GetNs()} }

func (s restService) stats(w http.ResponseWriter, r *http.Request) error {
	list, err := s.statistics(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	rows := []map[string]any{}
	for _, m := range list {
		i := m.GetInferenceStats()
		batches := []map[string]any{}
		for _, b := range m.GetBatchStats() {
			batches = append(batches, map[string]any{
				"batch_size": b.GetBatchSize(), "compute_input": durationOf(b.GetComputeInput()),
				"compute_infer": durationOf(b.GetComputeInfer()), "compute_output": durationOf(b.GetComputeOutput()),
			})
		}
		rows = append(rows, map[string]any{
			"name": m.GetName(), "version": m.GetVersion(), "last_inference": m.GetLastInference(),
			"inference_count": m.GetInferenceCount(), "execution_count": m.GetExecutionCount(), "batch_stats": batches,
			"inference_stats": map[string]restDuration{
				"success": durationOf(i.GetSuccess()), "fail": durationOf(i.GetFail()), "queue": durationOf(i.GetQueue()),
				"compute_input": durationOf(i.GetComputeInput()), "compute_infer": durationOf(i.GetComputeInfer()),
				"compute_output": durationOf(i.GetComputeOutput()), "cache_hit": durationOf(i.GetCacheHit()), "cache_miss": durationOf(i.GetCacheMiss()),
			},
		})
	}
	answerJSON(w, http.StatusOK, map[string]any{"model_stats": rows})
	return nil
}

func (s restService) repositoryIndex(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Ready bool `json:"ready"`
	}
	if err := s.control(w, r, &in); err != nil {
		return err
	}
	list, err := s.index(r.Context(), "", in.Ready)
	if err == nil {
		answerJSON(w, http.StatusOK, list)
	}
	return err
}

func (s restService) load(w http.ResponseWriter, r *http.Request) error {
	return s.loaded(w, r, true)
}

func (s restService) unload(w http.ResponseWriter, r *http.Request) error {
	return s.loaded(w, r, false)
}

func (s restService) loaded(w http.ResponseWriter, r *http.Request, loaded bool) error {
	var in struct {
		Parameters map[string]any `json:"parameters"`
	}
	if err := s.control(w, r, &in); err != nil {
		return err
	}
	if err := s.setLoaded(r.Context(), "", r.PathValue("model"), loaded, loaded && len(in.Parameters) > 0); err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, struct{}{})
	return nil
}

func (s restService) systemStatus(w http.ResponseWriter, r *http.Request) error {
	list, err := s.regionStatus(r.Context(), r.PathValue("region"), false)
	if err != nil {
		return err
	}
	rows := []map[string]any{}
	for _, one := range list {
		rows = append(rows, map[string]any{"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.bytes})
	}
	answerJSON(w, http.StatusOK, rows)
	return nil
}

func (s restService) systemRegister(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Key    string `json:"key"`
		Offset uint64 `json:"offset"`
		Bytes  uint64 `json:"byte_size"`
	}
	err := s.control(w, r, &in)
	if err == nil {
		err = s.registerSystem(r.Context(), r.PathValue("region"), in.Key, in.Offset, in.Bytes)
	}
	return done(w, err)
}

func (s restService) systemUnregister(w http.ResponseWriter, r *http.Request) error {
	return done(w, s.unregister(r.Context(), r.PathValue("region"), false))
}

func (s restService) cudaStatus(w http.ResponseWriter, r *http.Request) error {
	list, err := s.regionStatus(r.Context(), r.PathValue("region"), true)
	if err != nil {
		return err
	}
	rows := []map[string]any{}
	for _, one := range list {
		rows = append(rows, map[string]any{"name": one.name, "device_id": one.device, "byte_size": one.bytes})
	}
	answerJSON(w, http.StatusOK, rows)
	return nil
}

func (s restService) cudaRegister(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Handle struct {
			Base64 string `json:"b64"`
		} `json:"raw_handle"`
		Device int64  `json:"device_id"`
		Bytes  uint64 `json:"byte_size"`
	}
	if err := s.control(w, r, &in); err != nil {
		return err
	}
	handle, err := base64.StdEncoding.DecodeString(in.Handle.Base64)
	if err != nil {
		return fmt.Errorf("%w: raw_handle: %w", ErrInvalid, err)
	}
	return done(w, s.registerCUDA(r.Context(), r.PathValue("region"), handle, in.Device, in.Bytes))
}

func (s restService) cudaUnregister(w http.ResponseWriter, r *http.Request) error {
	return done(w, s.unregister(r.Context(), r.PathValue("region"), true))
}

// done sends an empty success response unless err is set.
func done(w http.ResponseWriter, err error) error {
	if err == nil {
		answerJSON(w, http.StatusOK, struct{}{})
	}
	return err
}

// errBody returns the error for a body that ends early or exceeds a limit.
func errBody(err error) error {
	if errors.Is(err, ErrTooLarge) || errors.Is(err, admission.ErrLimit) || errors.Is(err, admission.ErrSlow) {
		return err
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fmt.Errorf("%w: a request has at most %d bytes: see --max-request", ErrTooLarge, tooLarge.Limit)
	}
	return fmt.Errorf("%w: the body of the request: %w", ErrInvalid, err)
}
