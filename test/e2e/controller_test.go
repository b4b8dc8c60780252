// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Taints of the upstream cloud provider controllers.
const (
	uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"
	shutdownTaint      = "node.cloudprovider.kubernetes.io/shutdown"
)

// TestControllerAway covers changes while no controller runs. Nodes are initialized by the
// Proxmox cloud controller manager, which continues to run. All other tests run without it.
func TestControllerAway(t *testing.T) {
	t.Parallel()
	needs(t, guestsThatJoin())
	e := newEnv(t, setup{gracePeriod: 8 * time.Second})
	e.startCloudController(t)
	history := e.recordNodes(t)
	p := e.newNodePool(t, "away", leaveToCloudController(t))
	claim, node := p.oneNode(t)
	vm := e.vmOf(NewWithT(t), claim)

	t.Run("cloud_controller_manager_agrees", func(t *testing.T) { p.expectAgreement(t, claim, vm, history) })
	t.Run("VM_rebooted", func(t *testing.T) {
		must(t, e.api.Reboot(e.ctx, vm))
		e.waitForReboot(t, claim, node)
		node = e.node(NewWithT(t), claim)
	})
	t.Run("VM_stopped", func(t *testing.T) {
		e.controller.Stop()
		must(t, e.api.Stop(e.ctx, vm))
		e.eventually(t, "the node to be NotReady, with the taint of a stopped VM", func(g Gomega) {
			now := e.node(g, claim)
			g.Expect(harness.NodeReady(now)).To(BeFalse())
			g.Expect(now.Spec.Taints).To(ContainElement(HaveField("Key", shutdownTaint)))
		})
		must(t, e.controller.Start(e.ctx))
		e.waitForReboot(t, claim, node)
		e.waitForNoTaints(t, claim)
	})
	// The cloud controller manager deletes the Node, and Karpenter's finalizer keeps it until the controller is back.
	t.Run("VM_deleted", func(t *testing.T) {
		vm = e.vmOf(NewWithT(t), claim)
		e.controller.Stop()
		p.scale(t, 0) // otherwise Karpenter creates another one
		must(t, e.api.Destroy(e.ctx, vm))
		e.eventually(t, "the node to be deleted", func(g Gomega) { g.Expect(e.node(g, claim).DeletionTimestamp).NotTo(BeNil()) })
		must(t, e.controller.Start(e.ctx))
		p.waitUntilGone(t, *claim)
	})
}

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
			NewWithT(t).Expect(userData).To(ContainSubstring(before))
			kit.Templates.StringData["user-data"] = strings.ReplaceAll(userData, before, after)
		}
	}
}

// nodeHistory contains all values that properties of Nodes had.
type nodeHistory struct {
	sync.Mutex
	values map[string]sets.Set[string]
}

const providerIDs, addresses, taints = "provider ID", "address", "taint"

// recordNodes records the properties of all Nodes from now on.
func (e *env) recordNodes(t *testing.T) *nodeHistory {
	t.Helper()
	h := &nodeHistory{values: map[string]sets.Set[string]{}}
	events, err := e.kube.Watch(e.ctx, &corev1.NodeList{})
	must(t, err)
	t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			h.add(providerIDs, node.Spec.ProviderID)
			h.add(corev1.LabelTopologyZone, node.Labels[corev1.LabelTopologyZone])
			h.add(corev1.LabelTopologyRegion, node.Labels[corev1.LabelTopologyRegion])
			h.add(addresses, addressesOf(node)[corev1.NodeInternalIP])
			for _, taint := range node.Spec.Taints {
				h.add(taints, taint.Key)
			}
		}
	}()
	return h
}

func (h *nodeHistory) add(property, value string) {
	h.Lock()
	defer h.Unlock()
	if value != "" {
		h.values[property] = sets.New(value).Union(h.values[property])
	}
}

func addressesOf(node *corev1.Node) map[corev1.NodeAddressType]string {
	out := map[corev1.NodeAddressType]string{}
	for _, address := range node.Status.Addresses {
		out[address.Type] += address.Address
	}
	return out
}

// expectAgreement checks a Node that the cloud controller manager initialized. Its provider
// ID, zone, region and address must never have had another value than the NodeClaim's.
func (p *nodePool) expectAgreement(t *testing.T, claim *karpv1.NodeClaim, vm harness.Guest, history *nodeHistory) {
	t.Helper()
	g := NewWithT(t)
	p.waitForNoTaints(t, claim)
	node := p.node(g, claim)
	g.Expect(node.Spec.ProviderID).To(Equal(claim.Status.ProviderID))
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, karpv1.NodePoolLabelKey} {
		g.Expect(node.Labels).To(HaveKeyWithValue(key, claim.Labels[key]))
	}
	g.Expect(addressesOf(node)[corev1.NodeHostName]).To(Equal(node.Name))
	g.Expect(node.Annotations).To(HaveKeyWithValue("alpha.kubernetes.io/provided-node-ip", addressesOf(node)[corev1.NodeInternalIP]))
	// Newer versions than v0.7.0 set the instance type of the SKU. v0.7.0 sets one of its own.
	sku := base64.StdEncoding.EncodeToString([]byte(claim.Labels[corev1.LabelInstanceTypeStable]))
	g.Expect(vm.Config).To(HaveKeyWithValue("smbios1", ContainSubstring(",sku="+sku)))

	history.Lock()
	defer history.Unlock()
	for property, want := range map[string]string{
		providerIDs: claim.Status.ProviderID, corev1.LabelTopologyZone: claim.Labels[corev1.LabelTopologyZone],
		corev1.LabelTopologyRegion: p.region, addresses: addressesOf(node)[corev1.NodeInternalIP],
	} {
		g.Expect(history.values[property].UnsortedList()).To(ConsistOf(want), property)
	}
	g.Expect(history.values[taints]).To(HaveKey(uninitializedTaint))
}

// TestCloudConfig starts the controller with an invalid cloud config, then with a cluster that is down, and changes the
// cloud config while it runs. Other tests cover tokens and CAs in files that change, and several addresses.
func TestCloudConfig(t *testing.T) {
	t.Parallel()
	needs(t, simulator("the cluster is down"))
	e := newEnv(t, setup{idle: true})
	t.Run("invalid", e.invalidConfig)
	ports, err := harness.FreePorts(1)
	must(t, err)
	address, cluster := fmt.Sprintf("127.0.0.1:%d", ports[0]), e.proxmox.Cluster(e.region)
	cluster.URLs = []string{"https://" + address}
	must(t, e.controller.Configure(cluster))
	must(t, e.controller.StartProcess()) // it is not ready without a cluster
	p := e.newNodePool(t, "down", nil)
	t.Run("down_at_start", func(t *testing.T) {
		p.waitForReachable(t, false)
		NewWithT(t).Expect(e.logOf(t)).To(MatchRegexp(`"level":"ERROR".*"connecting to the Proxmox cluster failed.*%s`, filepath.Base(e.controller.CloudConfig())))
		forward, err := harness.StartForward(e.ctx, address, e.proxmox.Host())
		must(t, err)
		t.Cleanup(forward.Close)
		p.waitForReachable(t, true)
	})
	t.Run("changed_while_running", func(t *testing.T) { e.changedConfig(t, e.proxmox.Cluster(e.region)) })
}

// secondTokenSecret is the secret of a token that does not exist.
const secondTokenSecret = "22222222-3333-4444-5555-666666666666"

// invalidConfig checks that an invalid file ends the controller with one line that names the file, the field and the fix.
func (e *env) invalidConfig(t *testing.T) {
	must(t, e.controller.Configure(harness.Cluster{
		Region: e.region, URLs: []string{"http://127.0.0.1:8006"}, TokenID: "kubernetes@pve!second", TokenSecret: secondTokenSecret,
	}))
	output, exit, err := e.controller.Run(e.ctx)
	must(t, err)
	g := NewWithT(t)
	g.Expect(exit).NotTo(BeZero())
	g.Expect(strings.TrimSpace(output)).To(And(HavePrefix("error: "), Not(ContainSubstring("\n")), Not(ContainSubstring(secondTokenSecret)),
		ContainSubstring(e.controller.CloudConfig()), ContainSubstring("clusters[0].url"), ContainSubstring("want https://host:8006")))
}

// changedConfig checks that the controller exits when a setting that is read only at start changes, and uses it after a restart.
func (e *env) changedConfig(t *testing.T, cluster harness.Cluster) {
	must(t, e.controller.Configure(cluster))
	g := NewWithT(t)
	g.Eventually(e.controller.Done()).WithTimeout(timeout()).Should(BeClosed())
	g.Expect(e.logOf(t)).To(And(ContainSubstring("configuration file changed, exiting to reload"), Not(ContainSubstring("panic"))), "%v", e.controller.ExitError())
	must(t, e.controller.Start(e.ctx))
}

// waitForReachable waits for the status of ClustersReachable, and for the events and the metric of a cluster that is not reachable.
func (p *nodePool) waitForReachable(t *testing.T, status bool) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("ClustersReachable to be %t", status), func(g Gomega) {
		class := &v1alpha1.ProxmoxNodeClass{}
		g.Expect(p.kube.Get(p.ctx, client.ObjectKeyFromObject(p.kit.Class), class)).To(Succeed())
		c := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
		g.Expect(c.IsUnknown()).To(BeFalse())
		g.Expect(c.IsTrue()).To(Equal(status), c.Message)
	})
	p.waitForEvent(t, p.name, v1alpha1.ConditionClustersReachable)
	p.eventually(t, "failed polls to be counted", func(g Gomega) {
		g.Expect(p.controller.Metric(p.ctx, "karpenter_proxmox_inventory_poll_errors_total", map[string]string{"region": p.region})).NotTo(BeZero())
	})
}

// replaceFile replaces a file atomically, as kubelet does with a mounted Secret.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(content), 0o600))
	must(t, os.Rename(path+".new", path))
}
