// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// checkAll checks a Node from outside and inside.
func (n *node) checkAll(t testing.TB) {
	t.Helper()
	n.checkPods(t)
	t.Logf("guest: %s", n.run(t, `. /etc/os-release; echo "$PRETTY_NAME, Linux $(uname -r), $(cloud-init --version 2>&1), $(containerd --version), $(kubelet --version)"`))
	n.checkNode(t)
	n.checkCapacity(t)
	n.checkCloudInit(t)
	n.checkPodNetwork(t)
	n.checkKubelet(t)
	n.checkAgent(t)
	if n.c.check != nil {
		n.c.check(t, n)
	}
}

// checkNode checks identity, labels, taints and addresses of the Node.
func (n *node) checkNode(t testing.TB) {
	t.Helper()
	if n.node.Spec.ProviderID != n.claim.Status.ProviderID {
		t.Errorf("provider ID of the Node is %q, want the NodeClaim's %q", n.node.Spec.ProviderID, n.claim.Status.ProviderID)
	}
	if got := n.node.Status.NodeInfo.SystemUUID; !strings.EqualFold(got, string(n.claim.UID)) {
		t.Errorf("the Node's system UUID is %s, want the NodeClaim's UID %s", got, n.claim.UID)
	}
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelHostname: n.claim.Name, corev1.LabelTopologyZone: n.vm.Host, corev1.LabelTopologyRegion: region,
		karpv1.NodePoolLabelKey: n.c.name, corev1.LabelInstanceTypeStable: instanceType, karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
	} {
		if got := n.node.Labels[key]; got != want {
			t.Errorf("label %s of the Node is %q, want %q", key, got, want)
		}
	}
	if taints := n.node.Spec.Taints; len(taints) != 1 || !taints[0].MatchTaint(&teamTaint) || taints[0].Value != teamTaint.Value {
		t.Errorf("the Node has taints %v, want %v", taints, teamTaint)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.10.0.0/16")}
	if n.c.bridge == staticBridge {
		want = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/27"), netip.MustParsePrefix("fd10:20::/123")} // the pools' ranges
	}
	for _, ip := range internalIPs(n.node) {
		if !slices.ContainsFunc(want, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(ip)) }) {
			t.Errorf("the Node has address %s, want one of %v", ip, want)
		}
	}
}

// maxExtraMemory is how much more memory a Node may have than promised: the rest could not be used for pods.
const maxExtraMemory = 0.03

// checkCapacity compares what the Node has with what the NodeClaim promised to Karpenter's scheduler.
func (n *node) checkCapacity(t testing.TB) {
	t.Helper()
	for what, lists := range map[string][2]corev1.ResourceList{
		"capacity":    {n.claim.Status.Capacity, n.node.Status.Capacity},
		"allocatable": {n.claim.Status.Allocatable, n.node.Status.Allocatable},
	} {
		for name, promised := range lists[0] {
			actual := lists[1][name]
			t.Logf("%s %s: promised %s, real %s", what, name, promised.String(), actual.String())
			if actual.Cmp(promised) < 0 {
				t.Errorf("the Node's %s of %s is %s, less than the promised %s", what, name, actual.String(), promised.String())
			}
		}
	}
	promised, actual := n.claim.Status.Capacity.Memory().AsApproximateFloat64(), n.node.Status.Capacity.Memory().AsApproximateFloat64()
	if extra := actual/promised - 1; extra > maxExtraMemory {
		t.Errorf("the Node has %.1f %% more memory than promised, want at most %.0f %%", extra*100, maxExtraMemory*100)
	}
}

// checkCloudInit checks the result of cloud-init.
func (n *node) checkCloudInit(t testing.TB) {
	t.Helper()
	var result struct {
		V1 struct {
			Datasource string
			Errors     []string
		}
	}
	must(t, json.Unmarshal([]byte(n.run(t, "cat /var/lib/cloud/data/result.json")), &result))
	if len(result.V1.Errors) > 0 || !strings.Contains(result.V1.Datasource, "NoCloud") {
		t.Errorf("cloud-init reports data source %q and errors %v", result.V1.Datasource, result.V1.Errors)
	}
	n.expect(t, "failed units", "systemctl --failed --no-legend --plain", "^$")
}

// readPods prints the cgroup of each process of a pod, an empty line, and the resolv.conf of a container. It waits until a
// container runs: with a wrong configuration, the kubelet stops it after a few seconds and restarts it later.
const readPods = `for _ in $(seq 300); do
  cgroups=$(for pid in $(pgrep -x 'pause|guest-test'); do sed -n "s/^0::/$(cat /proc/$pid/comm) /p" /proc/$pid/cgroup || true; done 2> /dev/null)
  if resolv=$(cat "/proc/$(pgrep -x guest-test | head -n1)/root/etc/resolv.conf" 2> /dev/null); then
    case "$cgroups" in *"pause /"*"guest-test /"*) printf '%s\n\n%s' "$cgroups" "$resolv"; exit;; esac
  fi
  sleep 0.2
done
echo "no container of a pod was running; processes: $cgroups" >&2
exit 1`

// checkPods checks that the processes of pods are in the cgroups of their pods, where their limits apply, and that pods with
// dnsPolicy Default get DNS servers that they can reach.
func (n *node) checkPods(t testing.TB) {
	t.Helper()
	processes, resolvConf, _ := strings.Cut(n.run(t, readPods), "\n\n")
	for line := range strings.Lines(processes) {
		if _, path, _ := strings.Cut(line, " "); !strings.HasPrefix(path, "/kubepods.slice/") {
			t.Errorf("a process of a pod is not in kubepods.slice: %s", line)
		}
	}
	for line := range strings.Lines(resolvConf) {
		if server, ok := strings.CutPrefix(strings.TrimSpace(line), "nameserver "); ok && netip.MustParseAddr(server).IsLoopback() {
			t.Errorf("a pod with dnsPolicy Default has nameserver %s, the Node's own loopback address", server)
		}
	}
}

// checkAgent checks that Proxmox shows the addresses of the Node.
func (n *node) checkAgent(t testing.TB) {
	t.Helper()
	var answer struct {
		Result []struct {
			IPs []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		} `json:"result"`
	}
	must(t, n.proxmox.API.Call(t.Context(), "GET", fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", n.vm.Host, n.vm.VMID), nil, &answer))
	var shown []string
	for _, card := range answer.Result {
		for _, ip := range card.IPs {
			shown = append(shown, ip.Address)
		}
	}
	for _, ip := range internalIPs(n.node) {
		if !slices.Contains(shown, ip) {
			t.Errorf("Proxmox shows addresses %v, want %s among them", shown, ip)
		}
	}
}

// readKubelet reads the configuration of the running kubelet from its own API, as the API server would.
func (n *node) readKubelet(t testing.TB) kubeletv1beta1.KubeletConfiguration {
	t.Helper()
	config := rest.CopyConfig(n.plane.Config)
	// Its serving certificate is self-signed.
	config.TLSClientConfig = rest.TLSClientConfig{Insecure: true, CertData: config.CertData, KeyData: config.KeyData, CertFile: config.CertFile, KeyFile: config.KeyFile}
	config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(ctx, "10250") }
	kubelet, err := rest.HTTPClientFor(config)
	must(t, err)
	var answer struct {
		Configuration kubeletv1beta1.KubeletConfiguration `json:"kubeletconfig"`
	}
	n.within(t, agentTimeout, "the kubelet's configuration", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubelet:10250/configz", nil)
		if err != nil {
			return err
		}
		response, err := kubelet.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("the kubelet returned %s: %s", response.Status, body)
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &answer)
	})
	return answer.Configuration
}

// checkKubelet checks that the running kubelet has the configuration that the provider computed.
func (n *node) checkKubelet(t testing.TB) {
	t.Helper()
	k := n.readKubelet(t)
	t.Logf("kubelet: resolvConf %q, kubeReserved %v, systemReserved %v, evictionHard %v", ptr.Deref(k.ResolverConfig, ""), k.KubeReserved, k.SystemReserved, k.EvictionHard)
	if k.ProviderID != n.claim.Status.ProviderID || k.CgroupDriver != "systemd" || len(k.ClusterDNS) != 1 {
		t.Errorf("the kubelet has provider ID %q, cgroup driver %q and cluster DNS %v", k.ProviderID, k.CgroupDriver, k.ClusterDNS)
	}
	if !slices.ContainsFunc(k.RegisterWithTaints, func(taint corev1.Taint) bool { return taint.Key == karpv1.UnregisteredTaintKey }) {
		t.Errorf("the kubelet registers with taints %v, want %s among them", k.RegisterWithTaints, karpv1.UnregisteredTaintKey)
	}
	if n.c.withoutKubeletConfiguration {
		return
	}
	if want := n.claim.Status.Capacity.Pods().Value(); int64(k.MaxPods) != want {
		t.Errorf("the kubelet's maximum of pods is %d, want %d", k.MaxPods, want)
	}
	if !slices.ContainsFunc(k.RegisterWithTaints, func(taint corev1.Taint) bool { return taint.MatchTaint(&teamTaint) }) {
		t.Errorf("the kubelet registers with taints %v, want %v among them", k.RegisterWithTaints, teamTaint)
	}
	var reserved resource.Quantity
	for _, amount := range []string{k.KubeReserved["memory"], k.SystemReserved["memory"], k.EvictionHard["memory.available"]} {
		quantity, err := resource.ParseQuantity(amount)
		must(t, err)
		reserved.Add(quantity)
	}
	want := n.claim.Status.Capacity.Memory().DeepCopy()
	want.Sub(*n.claim.Status.Allocatable.Memory())
	if reserved.Cmp(want) != 0 {
		t.Errorf("the kubelet reserves %s of memory, want %s, which Karpenter assumes", reserved.String(), want.String())
	}
}

// podsReachEachOther starts a client next to each server, which sends a request to the server on the other Node.
func (e *env) podsReachEachOther(t *testing.T, c testCase) {
	t.Helper()
	servers, err := harness.Pods(t.Context(), e.kube, c.name)
	must(t, err)
	for i := range servers {
		from, to := &servers[i], &servers[(i+1)%len(servers)]
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: from.Namespace, Name: fmt.Sprintf("%s-client-%d", c.name, i)}, Spec: corev1.PodSpec{
			NodeName: from.Spec.NodeName, RestartPolicy: corev1.RestartPolicyNever, Tolerations: from.Spec.Tolerations,
			Containers: []corev1.Container{{
				Name: "client", Image: testImage, ImagePullPolicy: corev1.PullNever, Args: []string{"get", "http://" + net.JoinHostPort(to.Status.PodIP, "8080"), "5m"},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		}}
		must(t, e.kube.Create(t.Context(), pod))
		request := fmt.Sprintf("a request from a pod on %s to %s on %s", from.Spec.NodeName, to.Status.PodIP, to.Spec.NodeName)
		e.within(t, bootTimeout, request, func(ctx context.Context) error {
			if err := e.kube.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				return errors.New(podStates([]corev1.Pod{*pod}))
			}
			return nil
		})
		if pod.Status.Phase == corev1.PodFailed {
			t.Fatalf("%s failed: %s", request, podStates([]corev1.Pod{*pod}))
		}
		t.Logf("%s succeeded", request)
		must(t, e.kube.Delete(t.Context(), pod))
	}
}

// checkPodNetwork checks that containerd found the network plugin, which is only in /opt/cni/bin.
func (n *node) checkPodNetwork(t testing.TB) {
	t.Helper()
	pods, err := harness.Pods(t.Context(), n.kube, n.c.name)
	must(t, err)
	for i := range pods {
		if pods[i].Spec.NodeName != n.node.Name || harness.PodReady(&pods[i]) {
			continue
		}
		failure, err := n.networkFailure(t.Context(), &pods[i])
		must(t, err)
		t.Errorf("pod %s has no network: %s", pods[i].Name, failure)
	}
}

// networkFailure returns why a pod gets no network. It is empty if the kubelet has reported no missing plugin.
func (e *env) networkFailure(ctx context.Context, pod *corev1.Pod) (string, error) {
	events := &corev1.EventList{}
	if err := e.kube.List(ctx, events, client.InNamespace(pod.Namespace), client.MatchingFields{"involvedObject.uid": string(pod.UID)}); err != nil {
		return "", err
	}
	for _, event := range events.Items {
		if strings.Contains(event.Message, "failed to find plugin") {
			return event.Message, nil
		}
	}
	return "", nil
}

// createHostPod creates a pod in the network of the Node, which can start without a pod network.
func (n *node) createHostPod(t *testing.T) {
	t.Helper()
	spec := n.c.deployment().Spec.Template.Spec
	spec.HostNetwork, spec.NodeName, spec.Affinity = true, n.node.Name, nil
	spec.Containers[0].Resources = corev1.ResourceRequirements{}
	must(t, n.kube.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: n.node.Name}, Spec: spec}))
}
