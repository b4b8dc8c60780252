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
	files, err := bootdata.Render(bootdata.Templates{UserData: "{{ toYaml .Kubernetes.KubeletConfiguration }}"},
		bootdata.Data{Kubernetes: bootdata.Kubernetes{KubeletConfiguration: config}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(files.UserData)
}

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	startedAt := metav1.Now()
	in := bootdata.KubeletInput{
		ProviderID:     "proxmox://r/1",
		Taints:         bootdata.RegistrationTaints(corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &startedAt}),
		KubeReserved:   resources("100m", "384Mi"),
		SystemReserved: resources("10m", "64Mi"),
		Settings: bootdata.KubeletSettings{
			CPUManagerPolicy: "static", CPUCFSQuota: new(false), CPUCFSQuotaPeriod: &metav1.Duration{Duration: 5 * time.Millisecond},
			TopologyManagerPolicy: "restricted", TopologyManagerScope: "pod",
			ImageGCHighThresholdPercent: ptr.To[int32](70), ImageGCLowThresholdPercent: ptr.To[int32](0),
			ShutdownGracePeriod: &metav1.Duration{Duration: 90 * time.Second}, AllowedUnsafeSysctls: []string{"net.*"},
			ClusterDNS: []string{"10.96.0.10"}, MaxPods: ptr.To[int32](42), FailSwapOn: new(false),
		},
	}

	got := parseKubeletConfig(t, renderConfig(t, in))

	g.Expect(*got).To(Equal(kubeletconfig.KubeletConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},
		ProviderID: "proxmox://r/1",
		RegisterWithTaints: []corev1.Taint{
			{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
			{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule},
		},
		KubeReserved:   map[string]string{"cpu": "100m", "memory": "384Mi"},
		SystemReserved: map[string]string{"cpu": "10m", "memory": "64Mi"},
		EvictionHard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%",
		},
		CPUManagerPolicy: "static", CPUCFSQuota: new(false), CPUCFSQuotaPeriod: &metav1.Duration{Duration: 5 * time.Millisecond},
		FeatureGates:          map[string]bool{"CustomCPUCFSQuotaPeriod": true},
		TopologyManagerPolicy: "restricted", TopologyManagerScope: "pod",
		ImageGCHighThresholdPercent: ptr.To[int32](70), ImageGCLowThresholdPercent: ptr.To[int32](0),
		ShutdownGracePeriod: metav1.Duration{Duration: 90 * time.Second}, AllowedUnsafeSysctls: []string{"net.*"},
		ClusterDNS: []string{"10.96.0.10"}, MaxPods: 42, FailSwapOn: new(false),
	}))
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

func TestKubeletConfigurationInvalidSettings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settings bootdata.KubeletSettings
		want     string
	}{
		"GC_thresholds": {bootdata.KubeletSettings{ImageGCHighThresholdPercent: ptr.To[int32](75)},
			"imageGCLowThresholdPercent: 80 must be less than imageGCHighThresholdPercent, 75 (defaults: 80 and 85)"},
		"quota_period": {bootdata.KubeletSettings{CPUCFSQuotaPeriod: &metav1.Duration{Duration: 2 * time.Second}},
			"cpuCFSQuotaPeriod: 2s must be between 1ms and 1s"},
		"grace_period": {bootdata.KubeletSettings{ShutdownGracePeriod: &metav1.Duration{Duration: time.Millisecond}},
			"shutdownGracePeriod: 1ms must be 0 or at least 1s"},
		"static_CPUs": {bootdata.KubeletSettings{CPUManagerPolicy: "static"},
			"cpuManagerPolicy: static needs CPU in the instance type's KubeReserved or SystemReserved overhead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := bootdata.NewKubeletConfiguration(bootdata.KubeletInput{Settings: test.settings})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("kubeletConfiguration." + test.want)))
		})
	}
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
	files, err := bootdata.Render(bootdata.Templates{UserData: "{{ .Kubernetes.NodeLabels }}"},
		bootdata.Data{Kubernetes: bootdata.Kubernetes{NodeLabels: labels}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(strings.Split(string(files.UserData), ",")).To(Equal([]string{
		"example.com/x=v", "karpenter.proxmox.sinextra.dev/instance-family=v", "karpenter.sh/nodepool=v",
		"kubelet.kubernetes.io/x=v", "kubernetes.io/os=v", "node.kubernetes.io/instance-type=v", "notkubernetes.io/z=v",
		"plain=v", "sub.node.kubernetes.io/x=v", "topology.kubernetes.io/zone=v",
	}))
}
