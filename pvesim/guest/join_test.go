// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	joinTimeout = 3 * time.Minute
	polling     = 50 * time.Millisecond
)

// TestJoin boots guests against one real control plane.
func TestJoin(t *testing.T) {
	t.Parallel()
	p := startPlane(t)
	for name, test := range map[string]func(*testing.T, plane){
		"join and reboot":   testJoinAndReboot,
		"pods":              testPods,
		"conditions":        testConditions,
		"deleted Node":      testDeletedNode,
		"graceful shutdown": testGracefulShutdown,
		"invalid boot data": testInvalidBootData,
		"health":            testHealth,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// machine is a VM controlled by a test.
type machine struct {
	hardware
	t        *testing.T
	runtime  *Runtime
	cut      context.CancelFunc
	shutdown chan struct{}
	done     chan struct{}
	boots    int
}

// userData returns user-data in the format of the kubeadm recipe.
func userData(p plane, name, token, extraConfig string) string {
	indent := func(text string) string { return strings.ReplaceAll(text, "\n", "\n      ") }
	return fmt.Sprintf(`#cloud-config
hostname: %[1]s
write_files:
  - path: /etc/kubernetes/bootstrap-kubelet.conf
    permissions: "0600"
    content: |
      apiVersion: v1
      kind: Config
      clusters: [{name: k, cluster: {server: "%[2]s", certificate-authority-data: %[3]s}}]
      users: [{name: u, user: {token: "%[4]s"}}]
      contexts: [{name: c, context: {cluster: k, user: u}}]
      current-context: c
  - path: /var/lib/kubelet/config.yaml
    content: |
      apiVersion: kubelet.config.k8s.io/v1beta1
      kind: KubeletConfiguration
      providerID: proxmox://region/%[1]s
      registerWithTaints: [{key: karpenter.sh/unregistered, effect: NoExecute}]
      %[5]s
  - path: /etc/default/kubelet
    content: KUBELET_EXTRA_ARGS=--node-labels=karpenter.sh/nodepool=default
runcmd:
  - [systemctl, enable, --now, kubelet]
`, name, p.server, base64.StdEncoding.EncodeToString(p.ca), token, indent(extraConfig))
}

func testJoinAndReboot(t *testing.T, p plane) {
	g := NewWithT(t)
	ctx := t.Context()
	extraConfig := "maxPods: 30\nkubeReserved: {cpu: 100m, memory: 384Mi}\nevictionHard: {memory.available: 100Mi}"
	m := newMachine(t, "joiner", userData(p, "joiner", p.token(t, "joiner"), extraConfig))
	m.runtime.options.NetworkTime = 3 * time.Second
	m.powerOn()
	expectReady(t, p, "joiner")

	node := p.node(t, "joiner")
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady { // times are in whole seconds
			g.Expect(c.LastTransitionTime.Sub(node.CreationTimestamp.Time)).To(BeNumerically(">=", 2*time.Second), "a Node is not ready before its network is")
		}
	}
	g.Expect(node.Spec.ProviderID).To(Equal("proxmox://region/joiner"))
	g.Expect(node.Labels).To(And(HaveKeyWithValue("karpenter.sh/nodepool", "default"), HaveKeyWithValue("kubernetes.io/hostname", "joiner")))
	g.Expect(node.Spec.Taints).To(ContainElement(HaveField("Key", "karpenter.sh/unregistered")))
	g.Expect(node.Status.NodeInfo).To(And(HaveField("SystemUUID", "uuid-of-joiner"), HaveField("BootID", "boot-1")))
	server, err := p.client.Discovery().ServerVersion()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(server.GitVersion), "a kubelet must not be newer than the API server")
	g.Expect(node.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "172.16.0.1"}))
	g.Expect(node.Status.Capacity.Pods().Value()).To(BeEquivalentTo(30))
	g.Expect(node.Status.Allocatable.Cpu().MilliValue()).To(BeEquivalentTo(1900))
	g.Expect(requestsOf(t, p, "system:bootstrap:joiner")).To(HaveLen(1), "the node asked with its own token")

	// A reboot without the drive keeps the identity and requests no new certificate.
	g.Expect(p.client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, "bootstrap-token-joiner", metav1.DeleteOptions{})).To(Succeed())
	m.shutDown()
	m.drives = func() [][]byte { return nil }
	m.powerOn()
	g.Eventually(func(g Gomega) {
		again := p.node(t, "joiner")
		g.Expect(again.UID).To(Equal(node.UID))
		g.Expect(again.Status.NodeInfo.BootID).To(Equal("boot-2"))
		g.Expect(readiness(again)).To(Equal(corev1.ConditionTrue))
	}, joinTimeout, polling).Should(Succeed())
	g.Expect(requestsOf(t, p, "system:bootstrap:joiner")).To(HaveLen(1))
}

// requestsOf returns the names of the user's certificate signing requests.
func requestsOf(t *testing.T, p plane, user string) []string {
	t.Helper()
	list, err := p.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var names []string
	for i := range list.Items {
		if list.Items[i].Spec.Username == user {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

func newPod(name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			InitContainers:                []corev1.Container{{Name: "init", Image: "busybox"}},
			Containers:                    []corev1.Container{{Name: "main", Image: "pause"}},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
}

func (p plane) runPod(t *testing.T, pod *corev1.Pod) func() *corev1.Pod {
	t.Helper()
	pods := p.client.CoreV1().Pods(pod.Namespace)
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return func() *corev1.Pod {
		got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return got
	}
}

func testPods(t *testing.T, p plane) {
	g := NewWithT(t)
	m := join(t, p, "podder", "podder", "")
	stopping := newPod("healthy", "podder", nil)
	stopping.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}
	healthy := p.runPod(t, stopping)
	unhealthy := p.runPod(t, newPod("unhealthy", "podder", map[string]string{"kwok.x-k8s.io/stage": "unhealthy"}))
	once := newPod("once", "podder", nil)
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	ended := p.runPod(t, once)
	for _, pod := range []func() *corev1.Pod{healthy, unhealthy, ended} {
		g.Eventually(pod, joinTimeout, polling).Should(HaveField("Status.Phase", corev1.PodRunning))
	}
	g.Expect(isPodReady(healthy())).To(BeTrue())
	g.Expect(healthy().Status).To(And(HaveField("PodIP", HavePrefix("10.128.")), HaveField("HostIP", "172.16.0.1"), HaveField("StartTime", Not(BeNil()))))
	g.Expect(isPodReady(unhealthy())).To(BeFalse())

	// A reboot restarts the containers of existing pods unless their restart policy is Never.
	m.powerCut()
	m.powerOn()
	g.Eventually(healthy, joinTimeout, polling).Should(HaveField("Status.ContainerStatuses", ConsistOf(HaveField("RestartCount", int32(1)))))
	g.Eventually(ended, joinTimeout, polling).Should(HaveField("Status.Phase", corev1.PodFailed))
	g.Eventually(func() bool { return isPodReady(healthy()) }, joinTimeout, polling).Should(BeTrue())

	asked := time.Now()
	g.Expect(p.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "healthy", metav1.DeleteOptions{})).To(Succeed())
	g.Eventually(healthy, joinTimeout, polling).Should(BeNil())
	// The deletion timestamp has a resolution of a second.
	g.Expect(time.Since(asked)).To(BeNumerically(">", 4*time.Second), "the pre-stop hook takes 5 s")
}

func testConditions(t *testing.T, p plane) {
	g := NewWithT(t)
	m := join(t, p, "cutoff", "cutoff", "")
	foreign := `{"status":{"conditions":[{"type":"ProxmoxGuestUnhealthy","status":"True","reason":"Test"},{"type":"Ready","status":"Unknown"}]}}`
	_, err := p.client.CoreV1().Nodes().Patch(t.Context(), "cutoff", types.StrategicMergePatchType, []byte(foreign), metav1.PatchOptions{}, "status")
	g.Expect(err).NotTo(HaveOccurred())
	expectReady(t, p, "cutoff") // the kubelet reports before statusInterval has elapsed
	g.Expect(p.node(t, "cutoff").Status.Conditions).To(ContainElement(And(
		HaveField("Type", corev1.NodeConditionType("ProxmoxGuestUnhealthy")), HaveField("Status", corev1.ConditionTrue))))
	m.powerCut()
	g.Eventually(p.ready(t, "cutoff"), joinTimeout, time.Second).Should(Equal(corev1.ConditionUnknown), "the node controller notices")
}

func testDeletedNode(t *testing.T, p plane) {
	g := NewWithT(t)
	m := join(t, p, "deleted", "delete", "")
	g.Expect(p.client.CoreV1().Nodes().Delete(t.Context(), "deleted", metav1.DeleteOptions{})).To(Succeed())
	g.Eventually(func() string { return m.runtime.Console(100) }, joinTimeout, polling).Should(ContainSubstring("node deleted not found"))
	g.Consistently(func() *corev1.Node { return p.node(t, "deleted") }, 2*time.Second, 100*time.Millisecond).Should(BeNil())
	m.powerCut()
	m.powerOn()
	expectReady(t, p, "deleted")
}

func testGracefulShutdown(t *testing.T, p plane) {
	g := NewWithT(t)
	m := join(t, p, "graceful", "gracef", "shutdownGracePeriod: 30s")
	pod := p.runPod(t, newPod("graceful", "graceful", nil))
	g.Eventually(func() bool { return isPodReady(pod()) }, joinTimeout, polling).Should(BeTrue())
	m.shutDown()
	g.Expect(pod().Status).To(And(HaveField("Phase", corev1.PodFailed), HaveField("Reason", "Terminated")))
	g.Expect(readiness(p.node(t, "graceful"))).NotTo(Equal(corev1.ConditionTrue))
}

func testHealth(t *testing.T, p plane) {
	g := NewWithT(t)
	type state struct {
		health  pvesim.Health
		changed chan struct{}
	}
	var now atomic.Pointer[state]
	become := func(health pvesim.Health) {
		if before := now.Swap(&state{health, make(chan struct{})}); before != nil {
			close(before.changed)
		}
	}
	become(pvesim.HealthWell)
	m := newMachine(t, "not-ready", userData(p, "not-ready", p.token(t, "health"), ""))
	m.health = func() (pvesim.Health, <-chan struct{}) { s := now.Load(); return s.health, s.changed }
	m.powerOn()
	expectReady(t, p, "not-ready")
	become(pvesim.HealthSick)
	g.Eventually(p.ready(t, "not-ready"), joinTimeout, polling).Should(Equal(corev1.ConditionFalse))
	become(pvesim.HealthWell)
	expectReady(t, p, "not-ready")

	renewed := func() *metav1.MicroTime {
		lease, err := p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "not-ready", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return lease.Spec.RenewTime
	}
	become(pvesim.HealthHung)
	var last *metav1.MicroTime
	// A renewal may still be in progress.
	g.Eventually(func() bool { before := last; last = renewed(); return before.Equal(last) }, joinTimeout, time.Second).MustPassRepeatedly(3).Should(BeTrue())
	close(m.shutdown) // ignored by a hung guest
	g.Consistently(renewed, 2*time.Second, 100*time.Millisecond).Should(Equal(last))
	g.Expect(m.done).NotTo(BeClosed())
}

func testInvalidBootData(t *testing.T, p plane) {
	noCA, otherCA := p, p
	noCA.ca = []byte("no certificate")
	other, _, err := cert.GenerateSelfSignedCertKey("kubernetes", nil, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	otherCA.ca = other
	for name, test := range map[string]struct{ userData, want string }{
		"badtoken": {userData(p, "badtoken", "aaaaaa.0123456789abcdef", ""), "cannot request a certificate: cannot create certificate signing request: Unauthorized"},
		"noca":     {userData(noCA, "noca", "aaaaaa.0123456789abcdef", ""), "contains no certificates"},
		"badca":    {userData(otherCA, "badca", "aaaaaa.0123456789abcdef", ""), "certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			m := newMachine(t, name, test.userData)
			m.powerOn()
			g.Eventually(func() int { return strings.Count(m.runtime.Console(100), test.want) }, joinTimeout, polling).
				Should(BeNumerically(">=", 2), "the kubelet must log the reason and retry")
			g.Expect(p.node(t, name)).To(BeNil())
		})
	}
}
