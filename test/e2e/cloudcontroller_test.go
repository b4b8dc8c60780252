// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Taints of the upstream cloud provider controllers.
const (
	uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"
	shutdownTaint      = "node.cloudprovider.kubernetes.io/shutdown"
)

// startCloudController runs the Proxmox cloud controller manager. It skips the test without
// its binary.
func (e *env) startCloudController(t *testing.T) {
	t.Helper()
	binary := os.Getenv("CLOUD_CONTROLLER")
	if binary == "" {
		t.Skip("SKIPPED: CLOUD_CONTROLLER must name the cloud controller manager's binary; make e2e builds it and sets it")
	}
	var cluster harness.Cluster
	if suite.lab != nil {
		cluster = suite.lab.Cluster
	} else {
		cluster = e.proxmox.Cluster(e.region)
	}
	manager, err := harness.StartCloudController(binary, filepath.Join(e.dir, "cloud-controller"), e.plane.Kubeconfig, cluster)
	must(t, err)
	t.Cleanup(func() {
		manager.Stop()
		if t.Failed() {
			t.Logf("cloud controller manager:\n%s", harness.Tail(manager.Log(), 60))
		}
	})
}

// leaveToCloudController changes the boot data: the kubelet sets neither provider ID nor
// labels, so they are the cloud controller manager's.
func leaveToCloudController(t *testing.T) func(*harness.Kit) {
	return func(kit *harness.Kit) {
		kit.Values.StringData["cloudProvider"] = "external"
		for before, after := range map[string]string{
			"{{- .Kubernetes.KubeletConfiguration":       `{{- omit .Kubernetes.KubeletConfiguration "providerID"`,
			"--node-labels={{ .Kubernetes.NodeLabels }}": "",
		} {
			userData := kit.Templates.StringData["user-data"]
			if !strings.Contains(userData, before) {
				t.Fatalf("the example's user-data has no %s", before)
			}
			kit.Templates.StringData["user-data"] = strings.ReplaceAll(userData, before, after)
		}
	}
}

// nodeHistory contains all values that properties of a Node had, in order.
type nodeHistory struct {
	mu     sync.Mutex
	values map[string][]string
}

const (
	providerIDs = "provider ID"
	taints      = "taint"
	internalIPs = "internal IP"
)

// recordNodes records the properties of all Nodes from now on.
func (e *env) recordNodes(t *testing.T) *nodeHistory {
	t.Helper()
	h := &nodeHistory{values: map[string][]string{}}
	events, err := e.kube.Watch(t.Context(), &corev1.NodeList{})
	must(t, err)
	t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok {
				h.add(node)
			}
		}
	}()
	return h
}

func (h *nodeHistory) add(node *corev1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := map[string][]string{providerIDs: {node.Spec.ProviderID}}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		now[key] = []string{node.Labels[key]}
	}
	for _, taint := range node.Spec.Taints {
		now[taints] = append(now[taints], taint.Key)
	}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			now[internalIPs] = append(now[internalIPs], address.Address)
		}
	}
	for property, values := range now {
		for _, value := range values {
			if value != "" && !slices.Contains(h.values[property], value) {
				h.values[property] = append(h.values[property], value)
			}
		}
	}
}

func (h *nodeHistory) of(property string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.values[property])
}

// expectAgreement checks a Node that the cloud controller manager initialized. Its provider
// ID, zone, region and address must never have had another value than the NodeClaim's.
func (p *nodePool) expectAgreement(t *testing.T, claim *karpv1.NodeClaim, vm harness.Guest, history *nodeHistory) {
	t.Helper()
	node, err := p.node(t.Context(), claim)
	must(t, err)
	addresses := map[corev1.NodeAddressType][]string{}
	for _, address := range node.Status.Addresses {
		addresses[address.Type] = append(addresses[address.Type], address.Address)
	}
	for property, want := range map[string]string{
		providerIDs: claim.Status.ProviderID, corev1.LabelTopologyZone: claim.Labels[corev1.LabelTopologyZone],
		corev1.LabelTopologyRegion: p.region, internalIPs: strings.Join(addresses[corev1.NodeInternalIP], ","),
	} {
		if got := history.of(property); want == "" || !slices.Equal(got, []string{want}) {
			t.Errorf("%s of the node was %q, want only %q", property, got, want)
		}
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, karpv1.NodePoolLabelKey} {
		if node.Labels[key] != claim.Labels[key] || claim.Labels[key] == "" {
			t.Errorf("label %s of the node is %q, want the claim's %q", key, node.Labels[key], claim.Labels[key])
		}
	}
	// Newer versions than v0.7.0 set the instance type of the SKU. v0.7.0 sets one of its own.
	sku := base64.StdEncoding.EncodeToString([]byte(claim.Labels[corev1.LabelInstanceTypeStable]))
	if smbios, _ := vm.Config["smbios1"].(string); !strings.Contains(","+smbios+",", ",sku="+sku+",") {
		t.Errorf("smbios1 of the VM is %q, want the SKU %s of %s", smbios, sku, claim.Labels[corev1.LabelInstanceTypeStable])
	}
	if names := addresses[corev1.NodeHostName]; !slices.Equal(names, []string{node.Name}) {
		t.Errorf("the node has the host names %q, want %s", names, node.Name)
	}
	if provided := node.Annotations["alpha.kubernetes.io/provided-node-ip"]; !slices.Equal(addresses[corev1.NodeInternalIP], strings.Split(provided, ",")) {
		t.Errorf("the node has the addresses %v, want %s of its kubelet", node.Status.Addresses, provided)
	}
	if !slices.Contains(history.of(taints), uninitializedTaint) {
		t.Errorf("the node never had the taint %s", uninitializedTaint)
	}
	p.waitForNoTaints(t, claim)
}

// waitForShutdownTaint waits until a Node has the taint of a stopped VM or does not have it.
func (p *nodePool) waitForShutdownTaint(t *testing.T, claim *karpv1.NodeClaim, want bool) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("the taint %s of the node to exist: %t", shutdownTaint, want), func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		if err == nil && want != slices.ContainsFunc(node.Spec.Taints, func(have corev1.Taint) bool { return have.Key == shutdownTaint }) {
			err = fmt.Errorf("it has the taints %v", node.Spec.Taints)
		}
		return err
	})
}

// deletedWhileAway deletes a VM while no controller runs. The cloud controller manager deletes
// its Node, and Karpenter's finalizer keeps it until the controller is back.
func (p *nodePool) deletedWhileAway(t *testing.T, claim *karpv1.NodeClaim, vm harness.Guest) {
	t.Helper()
	p.controller.Stop()
	p.scaleToZero(t) // otherwise Karpenter creates another one
	p.waitForPods(t, 0)
	must(t, p.api.Destroy(t.Context(), vm))
	p.waitForEvent(t, claim.Name, "DeletingNode")
	p.eventually(t, "the node to be deleted", func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		if err == nil && node.DeletionTimestamp.IsZero() {
			err = errors.New("it is not being deleted")
		}
		return client.IgnoreNotFound(err)
	})
	must(t, p.controller.Start(t.Context()))
	p.waitUntilGone(t, claim)
}
