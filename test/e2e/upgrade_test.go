// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
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
	p, claim, node := e.launchNode(t, name)
	e.controller.Stop()
	e.disown(t, p, claim)
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
	p.expectSameNode(t, node)

	e.shell(t, home, blocks[3])
	e.waitForEvent(t, claim.Name, "VMAdopted")
	p.expectSameNode(t, node)
	p.deleteClaims(t, claim)
	e.detach(t, p, blocks[4])
}

// detach follows the steps for a Node of the other controller that is not adopted: it stays,
// and its VM too.
func (e *env) detach(t *testing.T, p *nodePool, block string) {
	t.Helper()
	must(t, harness.Scale(t.Context(), p.kube, p.name, 1))
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	vm := vmOf(t, p, claim)
	e.controller.Stop()
	e.disown(t, p, claim)
	e.shell(t, t.TempDir(), block)
	must(t, e.controller.Start(t.Context()))
	p.eventually(t, "the NodeClaim to be deleted", func(ctx context.Context) error {
		err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), claim)
		if err == nil {
			err = errors.New("it exists")
		}
		return client.IgnoreNotFound(err)
	})
	p.expectSameNode(t, node)
	must(t, p.kube.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	if len(node.OwnerReferences) > 0 || len(node.Finalizers) > 0 {
		t.Errorf("Node %s has owners %v and finalizers %v, want none", node.Name, node.OwnerReferences, node.Finalizers)
	}
	p.waitForPods(t, 1)
	if found := p.guest(t, vm.VMID); found.Status != vm.Status {
		t.Errorf("VM %d is %s, want %s", vm.VMID, found.Status, vm.Status)
	}
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
	must(t, e.plane.InstallChart(t.Context(), os.Getenv("HELM"), filepath.Join(previous, "charts", releaseName), releaseName, e.releaseValues(name)))
	e.runBinary(t, filepath.Join(previous, "controller"))
	p, claim, node := e.launchNode(t, name)
	e.controller.Stop()
	for _, block := range shellBlocks(t, "../../docs/upgrade.md") {
		e.shell(t, t.TempDir(), block)
	}
	e.runInstalled(t)
	p.expectSameNode(t, node)
	p.expectSameClaim(t, claim)
	p.deleteClaims(t, claim)
}

// releaseValues returns values that charts of other versions know too.
func (e *env) releaseValues(name string) map[string]any {
	return map[string]any{
		"bootDataSecrets":   map[string]any{metav1.NamespaceSystem: []string{name + "-templates", name + "-values"}},
		"logVerbosityLevel": "debug",
		"config":            map[string]any{"clusters": []harness.Cluster{e.proxmox.Cluster(e.region)}},
	}
}

// launchNode launches a Node for a pod.
func (e *env) launchNode(t *testing.T, name string) (*nodePool, *karpv1.NodeClaim, *corev1.Node) {
	t.Helper()
	p := e.newNodePool(t, name, nil)
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	return p, claim, node
}

// disown makes a VM and its NodeClaim look like those of the other controller: the VM has no
// ownership mark, and the NodeClaim has no record of the launch and hashes of another version.
func (e *env) disown(t *testing.T, p *nodePool, claim *karpv1.NodeClaim) {
	t.Helper()
	vm := vmOf(t, p, claim)
	must(t, e.api.Call(t.Context(), "PUT", fmt.Sprintf("/nodes/%s/qemu/%d/config", vm.Host, vm.VMID), url.Values{"delete": {"description"}}, nil))
	changed := claim.DeepCopy()
	maps.DeleteFunc(changed.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, v1alpha1.Group+"/launch-") })
	changed.Annotations[v1alpha1.AnnotationNodeClassHash] = "1"
	changed.Annotations[v1alpha1.AnnotationNodeClassHashVersion] = "v1"
	must(t, e.kube.Patch(t.Context(), changed, client.MergeFrom(claim)))
}

// expectSameNode checks that a Node was not recreated, and that it is ready.
func (p *nodePool) expectSameNode(t *testing.T, want *corev1.Node) {
	t.Helper()
	p.eventually(t, "the same Node is ready", func(ctx context.Context) error {
		found := &corev1.Node{}
		if err := p.kube.Get(ctx, client.ObjectKeyFromObject(want), found); err != nil {
			return err
		}
		if found.UID != want.UID || found.Spec.ProviderID != want.Spec.ProviderID {
			return fmt.Errorf("found Node %s of %s, want %s of %s", found.UID, found.Spec.ProviderID, want.UID, want.Spec.ProviderID)
		}
		for _, c := range found.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("the Node %s is not ready", found.Name)
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
func shellBlocks(t *testing.T, page string) []string {
	t.Helper()
	content, err := os.ReadFile(page)
	must(t, err)
	var blocks []string
	for _, block := range regexp.MustCompile("(?ms)^ *```shell\\n(.*?)^ *```$").FindAllStringSubmatch(string(content), -1) {
		blocks = append(blocks, block[1])
	}
	if len(blocks) < 2 {
		t.Fatalf("found %d shell blocks in %s, want at least 2", len(blocks), page)
	}
	return blocks
}
