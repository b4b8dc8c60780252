// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// upstreamChart has the values of chart 0.4.9 of sergelogvinov/karpenter-provider-proxmox.
const upstreamChart = "../chart/testdata/upstream-0.4.9"

// TestMigration follows docs/migration.md with a release of the other chart and a Node of the
// other controller: the Node stays, is adopted, and its VM is deleted with its NodeClaim.
func TestMigration(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the release several times"))
	const name = "migrated"
	e := newEnv(t, setup{idle: true, hosts: 2})
	e.removeJoinPermissions(t)
	values := e.releaseValues(name)
	e.helm(t, values)
	e.runInstalled(t)
	p := e.newNodePool(t, name, nil)
	claim, node := p.oneNode(t)
	e.controller.Stop()
	e.disown(t, claim)
	home := t.TempDir()
	e.shell(t, home, "helm -n kube-system uninstall "+releaseName)

	delete(values, "bootDataSecrets") // the other chart does not have it
	writeJSON(t, filepath.Join(home, "values.yaml"), values)
	upstream, err := filepath.Abs(upstreamChart)
	must(t, err)
	e.shell(t, home, fmt.Sprintf("helm install -n kube-system -f values.yaml %s %s", releaseName, upstream))
	blocks := shellBlocks(t, "../../docs/migration.md")
	secrets := strings.NewReplacer("my-templates", name+"-templates", "my-values", name+"-values")
	for _, block := range blocks[:3] {
		e.shell(t, home, secrets.Replace(block))
	}
	e.runInstalled(t)
	e.waitForEvent(t, claim.Name, "VMNotAdopted")
	e.expectSameNode(t, node)

	e.shell(t, home, blocks[3])
	e.appendMark(t, claim)
	e.waitForEvent(t, claim.Name, "VMAdopted")
	e.expectSameNode(t, node)
	p.deleteClaims(t)
	e.detach(t, p, blocks[4])
}

// appendMark appends the ownership mark in the event to the notes of a VM, like an administrator.
func (e *env) appendMark(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	events := &corev1.EventList{}
	must(t, e.kube.List(e.ctx, events))
	for _, event := range events.Items {
		mark, ok := ownership.Read(event.Message)
		if event.Reason != "VMNotAdopted" || event.InvolvedObject.Name != claim.Name || !ok {
			continue
		}
		vm := e.vmOf(NewWithT(t), claim)
		must(t, e.api.Call(e.ctx, "PUT", fmt.Sprintf("/nodes/%s/qemu/%d/config", vm.Host, vm.VMID), url.Values{"description": {"mine\n" + mark.Comment()}}, nil))
		return
	}
	t.Fatal("no event contains the ownership mark")
}

// detach follows the steps for a Node of the other controller that is not adopted: it stays,
// and its VM too.
func (e *env) detach(t *testing.T, p *nodePool, block string) {
	t.Helper()
	g := NewWithT(t)
	must(t, harness.Scale(e.ctx, e.kube, p.name, 1))
	claim := p.waitForClaim(t, "is settled", e.settled)
	node, vm := e.node(g, claim), e.vmOf(g, claim)
	e.controller.Stop()
	e.disown(t, claim)
	e.shell(t, t.TempDir(), block)
	must(t, e.controller.Start(e.ctx))
	e.waitForDeletion(t, claim)
	e.expectSameNode(t, node)
	must(t, e.kube.Get(e.ctx, client.ObjectKeyFromObject(node), node))
	g.Expect(node).To(And(HaveField("OwnerReferences", BeEmpty()), HaveField("Finalizers", BeEmpty())))
	p.waitForPods(t, 1)
	g.Expect(e.guest(g, vm.VMID).Status).To(Equal(vm.Status))
}

// TestUpgradeFromPrevious follows docs/upgrade.md with a release of an earlier commit: the Node
// stays. PREVIOUS is a directory with the charts and the controller of that commit, which
// "make e2e-upgrade" creates.
func TestUpgradeFromPrevious(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the release several times"))
	previous := os.Getenv("PREVIOUS")
	if previous == "" {
		t.Skip("SKIPPED: PREVIOUS must name a directory with the charts and the controller of an earlier commit; make e2e-upgrade creates it")
	}
	const name = "upgraded"
	e := newEnv(t, setup{idle: true, hosts: 2})
	e.removeJoinPermissions(t)
	must(t, e.plane.InstallChart(e.ctx, os.Getenv("HELM"), filepath.Join(previous, "charts", releaseName), releaseName, e.releaseValues(name)))
	e.runBinary(t, filepath.Join(previous, "controller"))
	p := e.newNodePool(t, name, nil)
	claim, node := p.oneNode(t)
	e.controller.Stop()
	for _, block := range shellBlocks(t, "../../docs/upgrade.md") {
		e.shell(t, t.TempDir(), block)
	}
	e.runInstalled(t)
	e.expectSameNode(t, node)
	p.expectSameClaim(t, claim)
	p.deleteClaims(t)
}

// releaseValues returns values that charts of other versions know too.
func (e *env) releaseValues(name string) map[string]any {
	return map[string]any{
		"bootDataSecrets":   map[string]any{metav1.NamespaceSystem: []string{name + "-templates", name + "-values"}},
		"logVerbosityLevel": "debug",
		"config":            map[string]any{"clusters": []harness.Cluster{e.proxmox.Cluster(e.region)}},
	}
}

// disown makes a VM and its NodeClaim look like those of the other controller: the VM has no
// ownership mark, and the NodeClaim has no record of the launch and hashes of another version.
func (e *env) disown(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	vm := e.vmOf(NewWithT(t), claim)
	must(t, e.api.Call(e.ctx, "PUT", fmt.Sprintf("/nodes/%s/qemu/%d/config", vm.Host, vm.VMID), url.Values{"delete": {"description"}}, nil))
	changed := claim.DeepCopy()
	maps.DeleteFunc(changed.Annotations, func(key, _ string) bool {
		return strings.HasPrefix(key, v1alpha1.Group+"/launch") || key == v1alpha1.AnnotationHolds
	})
	changed.Annotations[v1alpha1.AnnotationNodeClassHash] = "1"
	changed.Annotations[v1alpha1.AnnotationNodeClassHashVersion] = "v1"
	must(t, e.kube.Patch(e.ctx, changed, client.MergeFrom(claim)))
}

// expectSameNode checks that a Node was not recreated, and that it is ready.
func (e *env) expectSameNode(t *testing.T, want *corev1.Node) {
	t.Helper()
	e.eventually(t, "the same Node is ready", func(g Gomega) {
		found := &corev1.Node{}
		g.Expect(e.kube.Get(e.ctx, client.ObjectKeyFromObject(want), found)).To(Succeed())
		g.Expect(found).To(And(HaveField("UID", want.UID), HaveField("Spec.ProviderID", want.Spec.ProviderID)))
		g.Expect(harness.NodeReady(found)).To(BeTrue())
	})
}

// writeJSON writes a file that YAML parsers read too.
func writeJSON(t *testing.T, path string, content any) {
	t.Helper()
	raw, err := json.Marshal(content)
	must(t, err)
	must(t, os.WriteFile(path, raw, 0o600))
}

// shellBlocks returns the shell blocks of a page, including those in lists.
func shellBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	for _, s := range readSteps(t, page) {
		if s.kind == "shell" {
			blocks = append(blocks, s.content)
		}
	}
	NewWithT(t).Expect(len(blocks)).To(BeNumerically(">=", 2), page)
	return blocks
}
