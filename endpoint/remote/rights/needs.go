package rights

import (
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

// Need is the right that an operation requires of its sender. The gateway checks it when the headers or the name of the
// method have arrived, before it reads a body. Operations whose names are in the body check the name when they know it.
type Need struct {
	// Right is a right to models or functions, or access.Info. access.Connect means none.
	Right access.Right
	// Param is the part of the path that names the model or the function. If it is empty, a right to any name suffices.
	Param string
	// Versioned means that the name may be followed by @ and a version.
	Versioned bool
	// Metrics, Control and Change are the further rights of an identity. See [Identity.AllowMetrics] and its siblings.
	Metrics, Control, Change bool
}

// Label returns the name of the right in metrics.
func (n Need) Label() string {
	switch {
	case n.Metrics:
		return "metrics"
	case n.Control:
		return "control"
	case n.Change && n.Right == access.Connect:
		return "change"
	}
	return n.Right.String()
}

// Changes reports whether the operation changes the owner or the gateway.
func (n Need) Changes() bool { return n.Control || n.Change || changes(n.Right) }

// Allow returns nil if the identity may do the operation with the model or function of the name. An empty name means any
// of them.
func (n Need) Allow(id Identity, name string) error {
	if n.Metrics {
		return id.AllowMetrics()
	}
	if n.Control {
		if err := id.AllowControl(); err != nil {
			return err
		}
	}
	if n.Change {
		if err := id.AllowChange(); err != nil {
			return err
		}
	}
	if n.Right == access.Connect {
		return nil
	}
	return id.Allow(n.Right, name)
}

// SplitVersion splits NAME[@VERSION]. The text after the last @ is a version only if it is a number. Without a version it
// is 0.
func SplitVersion(text string) (name string, version uint64) {
	if at := strings.LastIndexByte(text, '@'); at > 0 {
		if version, err := strconv.ParseUint(text[at+1:], 10, 64); err == nil {
			return text[:at], version
		}
	}
	return text, 0
}

var (
	anyone   = Need{}
	info     = Need{Right: access.Info}
	list     = Need{Right: access.List}
	call     = Need{Right: access.Call}
	publish  = Need{Right: access.Publish}
	withdraw = Need{Right: access.Withdraw}
	control  = Need{Control: true}
)

// model is the need of a route with a model of the owner in its path.
func model(right access.Right) Need { return Need{Right: right, Param: "model", Versioned: true} }

// function is the need of a route with a function in its path.
func function() Need { return Need{Right: access.Call, Param: "model"} }

// Routes holds the needs of the HTTP routes by their patterns.
var Routes = routeNeeds()

func routeNeeds() map[string]Need {
	all := map[string]Need{
		"GET /healthz": anyone, "GET /health": anyone, "GET /readyz": anyone, "GET /{$}": anyone, "GET /page.css": anyone, "GET /page.js": anyone,
		"GET /icon.svg": anyone, "GET /openapi.yaml": anyone,
		"GET /v1/status": info, "GET /v1/events": info,
		"GET /metrics": {Metrics: true},

		"GET /v1/models":                             list,
		"GET /v1/models/{model}":                     model(access.List),
		"GET /v1/models/{model}/manifest":            model(access.List),
		"GET /v1/models/{model}/changes":             model(access.List),
		"GET /v1/models/{model}/tensors/{tensor...}": model(access.Acquire),
		"GET /v1/models/{model}/model.safetensors":   model(access.Acquire),
		"POST /v1/models/{model}/leases":             model(access.Acquire),
		"PUT /v1/models/{model}/model.safetensors":   model(access.Publish),
		"DELETE /v1/models/{model}":                  model(access.Withdraw),
		"GET /v1/models/{model}/deltas/{tensor...}":  anyone, // a lease is a right: it belongs to its holder
		"POST /v1/leases/{id}":                       anyone,
		"DELETE /v1/leases/{id}":                     anyone,
		"GET /v1/results/{id}":                       anyone, // results belong to their caller
		"DELETE /v1/results/{id}":                    anyone,
		"/jsonrpc":                                   anyone, // see Methods
		"GET /v2":                                    anyone,
		"GET /v2/{$}":                                anyone,
		"/v2/":                                       anyone,
		"GET /v2/health/live":                        anyone,
		"GET /v2/health/ready":                       anyone,
		"GET /v2/logging":                            anyone,
		"POST /v2/logging":                           anyone, // settings are read-only
		"GET /v2/trace/setting":                      anyone,
		"POST /v2/trace/setting":                     anyone,
		"GET /v2/models/stats":                       call,
		"POST /v2/repository/index":                  call,
		"GET /v2/models/{model}/trace/setting":       function(),
		"POST /v2/models/{model}/trace/setting":      function(),
		"POST /v2/repository/models/{model}/load":    {Control: true, Right: access.Call, Param: "model"},
		"POST /v2/repository/models/{model}/unload":  {Control: true, Right: access.Call, Param: "model"},
	}
	for _, at := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		for _, tail := range []string{"", "/ready", "/config", "/stats"} {
			all["GET "+at+tail] = function()
		}
		all["POST "+at+"/infer"] = function()
	}
	for _, at := range []string{"/v2/systemsharedmemory", "/v2/cudasharedmemory"} {
		for _, which := range []string{at, at + "/region/{region}"} {
			all["GET "+which+"/status"], all["POST "+which+"/unregister"] = control, control
		}
		all["POST "+at+"/region/{region}/register"] = control
	}
	return all
}

// Calls holds the needs of the gRPC methods.
var Calls = callNeeds()

func callNeeds() map[string]Need {
	const (
		inference = "/inference.GRPCInferenceService/"
		streams   = "/sharedtensor.stream.v1.TensorStream/"
		torch     = "/kpu.torch.Service/"
		compute   = "/splitlearn.comm.ComputeService/"
	)
	all := map[string]Need{
		streams + "Put": publish, torch + "ReceiveTensors": publish,
		streams + "Get": anyone, torch + "SendTensors": anyone, // --stream-generate serves tensors without a model
		torch + "StreamTensors": anyone, // without a function, tensors return unchanged
		streams + "Exchange":    anyone,
		streams + "Local":       anyone,
		compute + "Compute":     call, compute + "ComputeStream": call, // by the name in the message
		compute + "HealthCheck": anyone, compute + "GetServiceInfo": anyone, compute + "GetStatistics": anyone,
		inference + "RepositoryModelLoad":   {Control: true, Right: access.Call},
		inference + "RepositoryModelUnload": {Control: true, Right: access.Call},
	}
	for _, method := range []string{"Check", "List", "Watch"} {
		all["/grpc.health.v1.Health/"+method] = anyone
	}
	for _, version := range []string{"v1", "v1alpha"} {
		all["/grpc.reflection."+version+".ServerReflection/ServerReflectionInfo"] = anyone
	}
	for _, method := range []string{"ServerLive", "ServerReady", "ServerMetadata", "TraceSetting", "LogSettings"} {
		all[inference+method] = anyone
	}
	for _, method := range []string{"ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "ModelInfer", "ModelStreamInfer"} {
		all[inference+method] = call
	}
	for _, kind := range []string{"System", "Cuda"} {
		for _, method := range []string{"Status", "Register", "Unregister"} {
			all[inference+kind+"SharedMemory"+method] = control
		}
	}
	return all
}

// Methods holds the needs of the JSON-RPC methods.
var Methods = map[string]Need{
	"ping": anyone, "get_server_info": info, "release_result": anyone,
	"list_functions": call, "call_function": call, "execute_function": call, "submit_task": call,
	"get_task_status": call, "get_task_result": call, "wait_task": call, "cancel_task": call, "list_tasks": call,
	"invalidate":  {Change: true, Right: access.Call},
	"list_models": list, "inspect_model": list, "holders": list, "publish_from": publish, "withdraw": withdraw,
}
