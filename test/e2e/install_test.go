// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// rootPassword is unique, so it can be searched for.
const rootPassword = "correct-horse-battery-staple"

const releaseName = "karpenter-provider-proxmox"

// TestHelmInstall checks that the chart's installation is sufficient, including its
// permissions, to create and delete a Node, that an upgrade keeps the Node, and that no secret
// leaks.
func TestHelmInstall(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the release several times"))
	e := newEnv(t, setup{idle: true, hosts: 2, scenario: func(s *pvesim.Scenario) {
		i := slices.IndexFunc(s.Users, func(u pvesim.User) bool { return u.ID == "root@pam" })
		s.Users[i].Password = rootPassword
	}})
	g := NewWithT(t)
	e.removeJoinPermissions(t)
	values := e.chartValues()
	e.helm(t, values)
	e.runInstalled(t)
	p := e.newNodePool(t, "installed", func(kit *harness.Kit) {
		kit.Values.StringData["sshAuthorizedKeys"] = "ssh-ed25519 AAAA-a-value-of-a-secret-" + t.Name()
		kit.Values.StringData["unused"] = "a value that no template uses, " + t.Name()
		// Pinning needs root's login, because Proxmox does not allow it with a token.
		kit.Class.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	})
	claim, _ := p.oneNode(t)
	var launching map[string]*dto.MetricFamily
	e.eventually(t, "the metrics of the timeline", func(g Gomega) {
		var err error
		launching, err = e.controller.MetricFamilies(e.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(launching).To(HaveKey("karpenter_proxmox_launch_step_duration_seconds"))
	})

	values["replicaCount"] = 2
	values["settings"] = map[string]any{
		"proxmoxPollInterval": "1s", "batchMaxDuration": "5s", "featureGates": map[string]any{"nodeRepair": true},
	}
	values["metrics"] = map[string]any{"enabled": true}
	e.helm(t, values)
	e.controller.Stop()
	e.runInstalled(t)
	p.expectSameClaim(t, claim)
	// Before the claim is deleted, so its objects are searched too.
	e.expectNoSecrets(t)
	for _, name := range []string{"the token of the cloud config", "the password of root", "token-secret", "installed-values/sshAuthorizedKeys",
		"installed-values/unused", "installed-templates/user-data", releaseName + "/config.yaml"} {
		g.Expect(e.secrets.Names()).To(ContainElement(HaveSuffix(name)))
	}
	p.scale(t, 0)
	p.waitUntilGone(t, *claim)
	t.Run("metrics", func(t *testing.T) {
		removing, err := e.controller.MetricFamilies(e.ctx)
		must(t, err)
		exported := map[string][]*dto.Metric{}
		for _, families := range []map[string]*dto.MetricFamily{launching, removing} {
			for name, family := range families {
				exported[name] = append(exported[name], family.Metric...)
			}
		}
		checkMetrics(t, exported)
	})
	t.Run("log_key", func(t *testing.T) { e.checkClaimLog(t, claim) })
	g.Expect(e.logOf(t)).NotTo(Or(ContainSubstring("forbidden"), ContainSubstring("cannot list")), "the chart's permissions are insufficient")
	e.controller.Stop()
	t.Run("join_token_deleted_with_claim", e.expectTokenDeletedWithClaim)
}

// expectTokenDeletedWithClaim checks that Kubernetes deletes the join token of a NodeClaim that
// the controller did not delete: the controller must not list Secrets to find it.
func (e *env) expectTokenDeletedWithClaim(t *testing.T) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "removed-by-hand"}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: "installed"},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
	}}
	must(t, e.kube.Create(e.ctx, claim))
	tokens := &bootdata.Tokens{Client: e.kube}
	_, err := tokens.Issue(e.ctx, bootdata.Claim{Name: claim.Name, UID: claim.UID})
	must(t, err)
	must(t, e.kube.Delete(e.ctx, claim))
	e.eventually(t, "the join token to be deleted", func(g Gomega) { g.Expect(tokens.ListOwned(e.ctx)).To(BeEmpty()) })
}

// removeJoinPermissions removes the permissions with which a kubeplane lets Nodes join, so
// those of the chart are tested.
func (e *env) removeJoinPermissions(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kubeplane:node-bootstrapper", "kubeplane:node-autoapprove-bootstrap"} {
		must(t, e.kube.Delete(e.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
}

// chartValues returns the values file of the documentation for this Proxmox. It includes
// all kinds of secrets: a token and root's login; boot data has values and templates.
func (e *env) chartValues() map[string]any {
	cluster := e.proxmox.Cluster(e.region)
	cluster.Root = &harness.RootLogin{Username: "root@pam", Password: rootPassword}
	e.secrets.Add("the password of root", rootPassword)
	return map[string]any{
		"bootDataSecrets": map[string]any{metav1.NamespaceSystem: []string{"installed-templates", "installed-values"}},
		// A request that a busy machine delays would count as failed.
		"extraEnvs":         []any{map[string]any{"name": harness.TestDurations, "value": "dial-timeout=60s"}},
		"logVerbosityLevel": "debug", "config": map[string]any{"clusters": []harness.Cluster{cluster}},
		"nodeSelector": map[string]any{"node-role.kubernetes.io/control-plane": ""},
		"tolerations":  []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}},
	}
}

// expectSameClaim checks that the NodePool's only NodeClaim is the given one with the same VM.
func (p *nodePool) expectSameClaim(t *testing.T, want *karpv1.NodeClaim) {
	t.Helper()
	got := p.waitForClaim(t, "is the same", func(found *karpv1.NodeClaim) error {
		if found.UID != want.UID {
			return fmt.Errorf("it is %s, want %s", found.Name, want.Name)
		}
		return p.settled(found)
	})
	NewWithT(t).Expect(got.Status.ProviderID).To(Equal(want.Status.ProviderID))
}

// helm installs or upgrades the chart with the given values.
func (e *env) helm(t *testing.T, values map[string]any) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Skip("SKIPPED: HELM must name the helm binary; make e2e builds it and sets it")
	}
	must(t, e.plane.InstallChart(e.ctx, binary, filepath.Join(charts(t), releaseName), releaseName, values))
}

// runInstalled starts the controller as the Deployment specifies.
func (e *env) runInstalled(t *testing.T) {
	t.Helper()
	_, binary := binaries(t)
	e.runBinary(t, binary)
}

func (e *env) runBinary(t *testing.T, binary string) {
	t.Helper()
	var err error
	e.controller, err = harness.NewInstalledController(e.ctx, e.plane, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: releaseName},
		harness.ControllerOptions{Binary: binary, Dir: filepath.Join(e.dir, "installed")})
	must(t, err)
	e.logs = append(e.logs, e.controller.Log())
	t.Cleanup(e.controller.Stop)
	must(t, e.controller.Start(e.ctx))
}

func (e *env) logOf(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(e.controller.Log())
	must(t, err)
	return string(content)
}

// powerMetrics match metrics that exist only if a host has power management. absentMetrics match further ones that do not exist after a
// launch and a delete without failures: there is no address pool and no lock conflict, and nothing was orphaned.
var (
	powerMetrics  = regexp.MustCompile(`^karpenter_proxmox_(host_(asleep|power|sleep)|nodepool_(energy|power))_?`)
	absentMetrics = regexp.MustCompile(`^karpenter_proxmox_(address_pool|api_locked|orphans_deleted)_`)
)

// listedMetrics returns the metrics on the reference page.
func listedMetrics(t *testing.T) []string {
	t.Helper()
	return metricNames(t, "docs/reference/metrics.md", "(?m)^\\| `(karpenter_proxmox_\\w+)`")
}

// metricNames returns the metrics that match a pattern in a file of this repository.
func metricNames(t *testing.T, file, pattern string) (names []string) {
	t.Helper()
	content, err := os.ReadFile("../../" + file)
	must(t, err)
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(content), -1) {
		names = append(names, found[1])
	}
	NewWithT(t).Expect(len(names)).To(BeNumerically(">=", 5), file)
	return names
}

// checkMetrics compares the metrics that the controller exported with the reference page, in both directions, and with those of
// Karpenter's core in the dashboard and the alerts. It checks the labels of the provider's: the parser of Karpenter's test suites
// splits a line at the last opening brace and at commas, and panics on a part without an equals sign. No request counts as failed
// after a launch and a delete without failures: the check that a VM is deleted gets an error from Proxmox, which is the answer.
func checkMetrics(t *testing.T, exported map[string][]*dto.Metric) {
	t.Helper()
	g, listed := NewWithT(t), listedMetrics(t)
	for name, series := range exported {
		if !strings.HasPrefix(name, "karpenter_proxmox_") {
			continue
		}
		if !slices.Contains(listed, name) {
			t.Errorf("metric %s is not on the page: register it in operator.DescribeMetrics", name)
		}
		for _, one := range series {
			for _, label := range one.Label {
				g.Expect(label.GetValue()).NotTo(MatchRegexp("[{},]"), name)
				if name == "karpenter_proxmox_api_requests_total" && label.GetName() == "code" {
					g.Expect(label.GetValue()).To(BeElementOf("200", "not_found", "exists"), "%v", one)
				}
			}
		}
	}
	const files, core = "charts/karpenter-provider-proxmox/files/", `\b((?:operator|karpenter)_[a-z_]+)`
	for _, name := range slices.Concat(listed, metricNames(t, files+"dashboard.json", core), metricNames(t, files+"alerts.yaml", core)) {
		ours := strings.HasPrefix(name, "karpenter_proxmox_")
		if ours && (powerMetrics.MatchString(name) || absentMetrics.MatchString(name) || !slices.Contains(listed, name)) {
			continue // test/chart compares ours in the dashboard with the page
		}
		g.Expect(exported).To(Or(HaveKey(name), HaveKey(strings.TrimSuffix(name, "_bucket"))))
	}
}

// logLine holds the fields of a log line that identify its object.
type logLine struct {
	Message   string `json:"message"`
	Logger    string `json:"logger"`
	NodeClaim struct {
		Name string `json:"name"`
	} `json:"NodeClaim"`
	Node struct {
		Name string `json:"name"`
	} `json:"Node"`
	// DisruptedNodes are those of a command of Karpenter, which may be several.
	DisruptedNodes json.RawMessage `json:"disrupted-nodes"`
}

// checkClaimLog checks that the lifecycle of a NodeClaim is logged under one key, and that
// every line about the NodeClaim has this key.
func (e *env) checkClaimLog(t *testing.T, claim *karpv1.NodeClaim) {
	var life []string
	for _, path := range e.logs {
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		for _, text := range strings.Split(string(content), "\n") {
			if !strings.HasPrefix(text, "{") {
				continue
			}
			var line logLine
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Errorf("%v: the line is not an object, or its NodeClaim or Node has no name: %s", err, text)
				continue
			}
			switch about := strings.Contains(text, claim.Name) || strings.Contains(text, string(claim.UID)) || strings.Contains(text, claim.Status.ProviderID); {
			case line.NodeClaim.Name == claim.Name:
				life = append(life, line.Message)
			case about && !hasOtherKey(line):
				t.Errorf("a line about the claim does not have its key: %s", text)
			}
		}
	}
	// The Node may be registered before the controller has seen the end of the start.
	for _, order := range [][]string{
		{"created nodeclaim", "planned VM", "launched nodeclaim", "launch reached phase", "launched VM", "deleted boot drive and join token", "deleted VM", "deleted nodeclaim"},
		{"launched nodeclaim", "registered nodeclaim", "initialized nodeclaim", "deleted boot drive and join token"},
	} {
		next := 0
		for _, want := range order {
			i := slices.Index(life[next:], want)
			if i < 0 {
				t.Fatalf("the claim's log has no %q after %q: %q", want, life[:next], life[next:])
			}
			next += i
		}
	}
}

// hasOtherKey reports whether a line is one of Karpenter's about several claims, or about the
// Node, which has the name of its claim.
func hasOtherKey(line logLine) bool {
	return line.Node.Name != "" || line.DisruptedNodes != nil || strings.HasPrefix(line.Logger, "controller-runtime")
}
