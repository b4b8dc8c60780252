// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// parseKubeletConfig parses a config file strictly, like a kubelet.
func parseKubeletConfig(t *testing.T, raw string) *kubeletconfig.KubeletConfiguration {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(kubeletconfig.AddToScheme(scheme)).To(Succeed())
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode([]byte(raw), nil, nil)
	g.Expect(err).NotTo(HaveOccurred(), raw)
	config, ok := object.(*kubeletconfig.KubeletConfiguration)
	g.Expect(ok).To(BeTrue())
	return config
}

func renderConfig(t *testing.T, in bootdata.KubeletInput) string {
	t.Helper()
	config, err := bootdata.NewKubeletConfiguration(in)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	files := render(t, bootdata.Templates{UserData: "{{ toYaml .Kubernetes.KubeletConfiguration }}"},
		bootdata.Data{Kubernetes: bootdata.Kubernetes{KubeletConfiguration: config}})
	return string(files.UserData)
}

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	startedAt := metav1.Now()
	in := bootdata.KubeletInput{
		ProviderID:     "proxmox://r/1",
		Taints:         bootdata.RegistrationTaints(corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &startedAt}),
		KubeReserved:   resources("100m", "384Mi"),
		SystemReserved: resources("10m", "64Mi"),
		EvictionHard:   resources("0", "500Mi"),
		MaxPods:        64,
		Config: kubeletconfig.KubeletConfiguration{
			CPUManagerPolicy: "static", CPUCFSQuota: new(false), CPUCFSQuotaPeriod: &metav1.Duration{Duration: 5 * time.Millisecond},
			ImageGCHighThresholdPercent: ptr.To[int32](70), ImageGCLowThresholdPercent: ptr.To[int32](0),
			ShutdownGracePeriod: metav1.Duration{Duration: 90 * time.Second}, AllowedUnsafeSysctls: []string{"net.*"},
			MaxPods: 42, FeatureGates: map[string]bool{"MemoryQoS": true},
			KubeReserved: map[string]string{"memory": "1Gi", "pid": "1000"}, EvictionHard: map[string]string{"nodefs.available": "5%"},
			// The instance type's threshold is that of evictionSoft.
			EvictionSoft: map[string]string{"memory.available": "500Mi"}, EvictionSoftGracePeriod: map[string]string{"memory.available": "1m"},
		},
	}
	want := *in.Config.DeepCopy()
	want.TypeMeta = metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"}
	want.ProviderID, want.RegisterWithTaints = "proxmox://r/1", []corev1.Taint{
		{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}, {Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule},
	}
	want.KubeReserved = map[string]string{"cpu": "100m", "memory": "1Gi", "pid": "1000"}
	want.SystemReserved = map[string]string{"cpu": "10m", "memory": "64Mi"}
	want.EvictionHard = map[string]string{
		"memory.available": "100Mi", "nodefs.available": "5%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
	want.FeatureGates = map[string]bool{"CustomCPUCFSQuotaPeriod": true, "MemoryQoS": true}
	NewWithT(t).Expect(*parseKubeletConfig(t, renderConfig(t, in))).To(Equal(want))
}

func TestKubeletConfigurationOmitsUnsetFields(t *testing.T) {
	t.Parallel()
	text := renderConfig(t, bootdata.KubeletInput{ProviderID: "proxmox://r/1", Taints: bootdata.RegistrationTaints()})
	var keys []string
	for line := range strings.Lines(text) {
		if key, _, found := strings.Cut(line, ":"); found && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "-") {
			keys = append(keys, key)
		}
	}
	NewWithT(t).Expect(keys).To(Equal([]string{"apiVersion", "evictionHard", "kind", "providerID", "registerWithTaints"}))
	parseKubeletConfig(t, text)
}

func TestKubeletConfigurationStaticPolicy(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	static := kubeletconfig.KubeletConfiguration{CPUManagerPolicy: "static"}
	_, err := bootdata.NewKubeletConfiguration(bootdata.KubeletInput{Config: static})
	g.Expect(err).To(MatchError(ContainSubstring("kubeletConfiguration.cpuManagerPolicy: found static, which needs CPU in kubeReserved or systemReserved")))
	static.KubeReserved = map[string]string{"cpu": "100m"}
	g.Expect(bootdata.NewKubeletConfiguration(bootdata.KubeletInput{Config: static})).Error().NotTo(HaveOccurred())
}

func TestRegistrationTaintsUnique(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "a", Value: "1", Effect: corev1.TaintEffectNoSchedule}
	again, other := taint, taint
	again.Value, other.Effect = "2", corev1.TaintEffectNoExecute
	NewWithT(t).Expect(bootdata.RegistrationTaints(taint, again, other).String()).
		To(Equal("karpenter.sh/unregistered=:NoExecute,a=1:NoSchedule,a=1:NoExecute"))
}

func TestNodeLabelsAllowedForKubelet(t *testing.T) {
	t.Parallel()
	labels := bootdata.Labels{}
	for _, key := range []string{
		"plain", "example.com/x", "karpenter.sh/nodepool", "karpenter.proxmox.sinextra.dev/instance-family",
		"topology.kubernetes.io/zone", "node.kubernetes.io/instance-type", "kubelet.kubernetes.io/x", "sub.node.kubernetes.io/x",
		"kubernetes.io/os", "kubernetes.io/role", "node-role.kubernetes.io/worker", "x.k8s.io/y", "k8s.io/y",
		"node-restriction.kubernetes.io/z", "notkubernetes.io/z",
	} {
		labels[key] = "v"
	}
	files := render(t, bootdata.Templates{UserData: "{{ .Kubernetes.NodeLabels }}"},
		bootdata.Data{Kubernetes: bootdata.Kubernetes{NodeLabels: labels}})
	NewWithT(t).Expect(strings.Split(string(files.UserData), ",")).To(Equal([]string{
		"example.com/x=v", "karpenter.proxmox.sinextra.dev/instance-family=v", "karpenter.sh/nodepool=v",
		"kubelet.kubernetes.io/x=v", "kubernetes.io/os=v", "node.kubernetes.io/instance-type=v", "notkubernetes.io/z=v",
		"plain=v", "sub.node.kubernetes.io/x=v", "topology.kubernetes.io/zone=v",
	}))
}
