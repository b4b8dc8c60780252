// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestGettingStarted follows docs/getting-started.md: it writes its files under their names
// and runs its commands in order in a shell, on a Proxmox as its installer leaves it. In the
// files it replaces only what the page asks the reader to replace: address, secret and
// certificate.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it starts with a newly installed Proxmox"))
	if os.Getenv("HELM") == "" {
		t.Skip("SKIPPED: HELM must name the helm binary; make e2e builds it and sets it")
	}
	r := &reader{env: newEnv(t, setup{idle: true, hosts: 1, fresh: true, version: "9.2"}), images: testenv.ServeImages(t, 256<<10).URL, home: t.TempDir()}
	r.removeJoinPermissions(t)
	// kubeadm installs it.
	must(t, r.kube.Create(r.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}},
	}))
	before := r.holdings(NewWithT(t))
	steps := readSteps(t, "../../docs/getting-started.md")
	NewWithT(t).Expect(len(steps)).To(BeNumerically(">=", 15))
	for _, step := range steps {
		r.do(t, step)
	}
	r.expectUnchanged(t, before)
}

// reader follows the page.
type reader struct {
	*env
	// home is the working directory of the commands.
	home, images string
	// secret is the token's secret as Proxmox returned it.
	secret string
}

// step is a code block of the page. file is the name in the text before it.
type step struct{ kind, file, content string }

func readSteps(t *testing.T, page string) (steps []step) {
	t.Helper()
	content, err := os.ReadFile(page)
	must(t, err)
	named := regexp.MustCompile("Write `([a-z]+\\.yaml)`")
	for _, block := range regexp.MustCompile("(?ms)(.*?)^ *```(\\w+)[^\n]*\n(.*?)^ *```$").FindAllStringSubmatch(string(content), -1) {
		s := step{kind: block[2], content: block[3]}
		if names := named.FindAllStringSubmatch(block[1], -1); len(names) > 0 {
			s.file = names[len(names)-1][1]
		}
		steps = append(steps, s)
	}
	return steps
}

func (r *reader) do(t *testing.T, s step) {
	t.Helper()
	switch s.kind {
	case "yaml":
		NewWithT(t).Expect(s.file).NotTo(BeEmpty(), "the page does not name this file:\n%s", s.content)
		content := r.adapt(s.content)
		if s.file == "values.yaml" { // the defaults take longer
			content += "settings: {proxmoxPollInterval: 1s, batchMaxDuration: 5s}\n"
		}
		must(t, os.WriteFile(filepath.Join(r.home, s.file), []byte(content), 0o600))
	case "shell":
		if strings.HasPrefix(s.content, "pve") {
			r.onProxmox(t, s.content)
			return
		}
		r.onMachine(t, s.content)
	}
}

// adapt fills in the values that the page requires, and an image URL that works without the
// internet.
func (r *reader) adapt(file string) string {
	proxmox := r.proxmox.Cluster(r.region)
	certificate := regexp.MustCompile(`(?s)( +)-----BEGIN CERTIFICATE-----.*-----END CERTIFICATE-----`)
	file = certificate.ReplaceAllStringFunc(file, func(sample string) string {
		margin := sample[:strings.Index(sample, "-")]
		return margin + strings.ReplaceAll(strings.TrimSpace(proxmox.CA), "\n", "\n"+margin)
	})
	return strings.NewReplacer(
		"https://192.0.2.10:8006/api2/json", proxmox.URLs[0],
		"00000000-0000-0000-0000-000000000000", r.secret,
		"https://192.0.2.1:6443", r.plane.Config.Host,
		"https://cloud-images.ubuntu.com/", r.images+"/",
	).Replace(file)
}

// onProxmox runs the commands of a Proxmox host: a shell parses them, and the API executes
// them.
func (r *reader) onProxmox(t *testing.T, commands string) {
	t.Helper()
	cmd := exec.CommandContext(r.ctx, "bash", "-euc", `show() { printf '%s\037' "$@"; echo; }; `+
		`pveum() { show pveum "$@"; }; pvesm() { show pvesm "$@"; }`+"\n"+commands)
	out, err := cmd.CombinedOutput()
	must(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		r.command(t, strings.Split(strings.TrimSuffix(line, "\037"), "\037"))
	}
}

// command executes one Proxmox command through the API.
func (r *reader) command(t *testing.T, words []string) {
	t.Helper()
	var names []string
	options := url.Values{}
	for n := 0; n < len(words); n++ {
		if option, ok := strings.CutPrefix(strings.TrimPrefix(words[n], "-"), "-"); (ok || strings.HasPrefix(words[n], "-")) && n+1 < len(words) {
			options.Set(option, words[n+1])
			n++
			continue
		}
		names = append(names, words[n])
	}
	call := func(method, path string, params url.Values, into any) {
		if err := r.api.Call(r.ctx, method, path, params, into); err != nil {
			t.Fatalf("%s: %v", strings.Join(words, " "), err)
		}
	}
	switch verb := strings.Join(names[:min(3, len(names))], " "); {
	case verb == "pveum role add":
		call("POST", "/access/roles", url.Values{"roleid": {names[3]}, "privs": options["privs"]}, nil)
	case verb == "pveum user add":
		call("POST", "/access/users", url.Values{"userid": {names[3]}}, nil)
	case verb == "pveum acl modify":
		call("PUT", "/access/acl", url.Values{"path": {names[3]}, "users": options["users"], "roles": options["roles"]}, nil)
	case verb == "pveum user token":
		var token struct{ Value string }
		call("POST", "/access/users/"+names[4]+"/token/"+names[5], url.Values{"privsep": options["privsep"]}, &token)
		r.secret = token.Value
	case strings.HasPrefix(verb, "pvesm set "):
		call("PUT", "/storage/"+names[2], options, nil)
	default:
		t.Fatalf("unknown command %q", strings.Join(words, " "))
	}
}

// onMachine runs the commands for kubectl and helm. The controller runs as a process, because
// nothing here can run its pod.
func (r *reader) onMachine(t *testing.T, commands string) {
	t.Helper()
	r.shell(t, r.home, commands)
	if strings.HasPrefix(commands, "helm upgrade") {
		r.runInstalled(t)
		NewWithT(t).Expect(r.logOf(t)).To(ContainSubstring("connected to the Proxmox cluster"), "the log line on the page")
	}
}

// shell runs documented commands for kubectl and helm in a directory, with the charts under
// test and the other files of this repository.
func (e *env) shell(t *testing.T, dir, commands string) {
	t.Helper()
	kubeplane, _ := binaries(t)
	root, err := filepath.Abs("../..")
	must(t, err)
	here := strings.NewReplacer(
		"oci://ghcr.io/karpenter-proxmox/charts", charts(t),
		"https://raw.githubusercontent.com/karpenter-proxmox/karpenter-provider-proxmox/main", root,
	).Replace(commands)
	script := fmt.Sprintf(`
helm() { %q "$@"; }
cat() { [ "$1" = /etc/pve/pve-root-ca.pem ] || command cat "$@"; }
sleep() { :; }
kubectl() {
	case "$*" in
	*" rollout status deployment/karpenter-provider-proxmox"* | *" logs "*) : ;;
	*) %q kubectl "$@" ;;
	esac
}
set -euo pipefail
`, os.Getenv("HELM"), kubeplane) + strings.ReplaceAll(here, " | grep", " # | grep")
	cmd := exec.CommandContext(e.ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.plane.Kubeconfig, "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.dump(t)
		t.Fatalf("%v\n%s\n%s", err, commands, out)
	}
}

// charts returns the directory of the charts under test: CHARTS, or that of this repository.
func charts(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("CHARTS")
	if dir == "" {
		dir = "../../charts"
	}
	dir, err := filepath.Abs(dir)
	must(t, err)
	return dir
}

// TestManifestInstall follows docs/install-manifest.md with the manifest of a release, which
// MANIFEST names. The controller launches a Node for a pod, is killed meanwhile, and another one
// completes the launch as soon as the Lease of the first has expired.
func TestManifestInstall(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the controller"))
	manifest := os.Getenv("MANIFEST")
	if manifest == "" {
		t.Skip("SKIPPED: MANIFEST must name the manifest of a release; make e2e renders it")
	}
	e := newEnv(t, setup{idle: true, hosts: 2})
	g := NewWithT(t)
	before := e.holdings(g)
	e.removeJoinPermissions(t)
	home := t.TempDir()
	writeJSON(t, filepath.Join(home, "config.yaml"), map[string]any{"clusters": []harness.Cluster{e.proxmox.Cluster(e.region)}})
	for _, block := range shellBlocks(t, "../../docs/install-manifest.md") {
		// Here, the harness has created the CRDs with another field manager.
		block = strings.Replace(block, "--server-side", "--server-side --force-conflicts", 1)
		e.shell(t, home, strings.ReplaceAll(block, "https://github.com/karpenter-proxmox/karpenter-provider-proxmox/releases/latest/download/install.yaml", manifest))
	}
	e.runInstalled(t)
	p := e.newNodePool(t, "kubeadm", nil) // the manifest allows the Secrets of the recipes
	p.deployPods(t, 1)
	was := p.killDuringLaunch(t)
	must(t, e.controller.Start(e.ctx))
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", p.settled)
	g.Expect(claim.UID).To(Equal(was.UID))
	g.Expect(p.vms(g)).To(HaveExactElements(HaveField("VMID", e.vmOf(g, was).VMID)))
	joined, problems, err := e.proxmox.BootRecorder.CheckJoins(e.ctx, e.kube, []string{claim.Name})
	must(t, err)
	g.Expect(joined).To(Equal(1), "the Node joins with its own token: %v", problems)
	g.Expect(e.boots(claim)).To(Equal(1))

	p.deleteClaims(t)
	e.expectUnchanged(t, before)
	g.Expect(e.logOf(t)).NotTo(ContainSubstring("forbidden"), "the permissions of the manifest are insufficient")
}
