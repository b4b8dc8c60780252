// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

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
