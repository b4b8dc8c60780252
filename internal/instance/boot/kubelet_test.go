// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/kubelet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// decodeStrictly decodes a config file like a kubelet.
func decodeStrictly(raw []byte) (*kubeletconfig.KubeletConfiguration, error) {
	scheme := runtime.NewScheme()
	if err := kubeletconfig.AddToScheme(scheme); err != nil {
		return nil, err
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return nil, fmt.Errorf("decoded a %T", object)
	}
	return config, nil
}

// checkRendered reports whether a kubelet configuration is accepted for a VM. If it is, the
// kubelet must decode the rendered file and find each field of the NodeClass.
func checkRendered(t *testing.T, spec *v1alpha1.KubeletConfiguration, cores, memoryMiB int) bool {
	t.Helper()
	g := NewWithT(t)
	r := Request{
		Class: &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{KubeletConfiguration: spec}}, Claim: &karpv1.NodeClaim{},
		Intent:   instance.Intent{Region: "region-1", VMID: 20001, Cores: cores, MemoryMiB: memoryMiB},
		Overhead: cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
	}
	rendered, err := newKubeletConfiguration(r, bootdata.RegistrationTaints())
	if err != nil {
		if !strings.HasPrefix(err.Error(), "spec.kubeletConfiguration") {
			t.Errorf("the error does not name the field: %v", err)
		}
		return false
	}
	raw, err := yaml.Marshal(rendered)
	g.Expect(err).NotTo(HaveOccurred())
	read, err := decodeStrictly(raw)
	g.Expect(err).NotTo(HaveOccurred(), "the kubelet rejects the file: %s", raw)
	class, err := kubelet.New(spec)
	g.Expect(err).NotTo(HaveOccurred())
	want, err := class.For(kubelet.VM{CPUs: cores, MemoryBytes: int64(memoryMiB) << 20})
	g.Expect(err).NotTo(HaveOccurred())
	// These contain fields of the provider, too.
	want.TypeMeta, want.ProviderID, want.RegisterWithTaints = read.TypeMeta, read.ProviderID, read.RegisterWithTaints
	want.KubeReserved, want.SystemReserved = merged(read.KubeReserved, want.KubeReserved), merged(read.SystemReserved, want.SystemReserved)
	want.EvictionHard, want.FeatureGates = merged(read.EvictionHard, want.EvictionHard), merged(read.FeatureGates, want.FeatureGates)
	g.Expect(mustEncode(t, read)).To(Equal(mustEncode(t, &want)))
	return true
}

// merged returns the entries of both maps.
func merged[V any](base, values map[string]V) map[string]V {
	out := map[string]V{}
	maps.Copy(out, base)
	maps.Copy(out, values)
	return out
}

// TestKubeletConfigurationDecodes generates random values for random fields of the
// kubelet. Each that is accepted alone is added.
func TestKubeletConfigurationDecodes(t *testing.T) {
	t.Parallel()
	accepted := map[string]bool{}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 18))
		spec := &v1alpha1.KubeletConfiguration{}
		cores, memory := 1+random.IntN(32), 512<<random.IntN(9)
		for field := range reflect.TypeFor[kubeletconfig.KubeletConfiguration]().Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" || random.IntN(3) > 0 {
				continue
			}
			changed := &v1alpha1.KubeletConfiguration{}
			fields := map[string]any{}
			NewWithT(t).Expect(json.Unmarshal([]byte(mustEncode(t, spec)), &fields)).To(Succeed())
			fields[name] = randomValue(random, name, field.Type)
			if json.Unmarshal([]byte(mustEncode(t, fields)), changed) != nil {
				continue // the API server rejects it
			}
			if checkRendered(t, changed, cores, memory) {
				spec, accepted[name] = changed, true
			}
		}
	}
	if len(accepted) < 100 {
		t.Errorf("only %d fields were accepted: %v", len(accepted), accepted)
	}
}

func mustEncode(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

// randomTexts are strings of which some are valid for some fields.
var randomTexts = []string{
	"", "none", "None", "static", "a: b", "yes", "null", "0x10", "é\u2028\n", "- x", "10Mi", "1e3", "5%", "1m30s", "10x", "pods", "Webhook", "Watch",
	"systemd", "json", "0", "cpu * 10", "memory / 20", "256 * Mi", "cpu - 100", "hairpin-veth", "NoSwap", "pod", "best-effort", "NeverVerify", "TieredReservation",
}

// randomKeys are keys of maps.
var randomKeys = map[string][]string{
	"kubeReserved": {"cpu", "memory", "pid", "gpu"}, "systemReserved": {"cpu", "memory", "ephemeral-storage"},
	"evictionHard": {"memory.available", "nodefs.available", "pid.available"}, "evictionMinimumReclaim": {"memory.available", "imagefs.available"},
	"evictionSoftGracePeriod": {"memory.available", "nodefs.available"},
}

func randomValue(random *rand.Rand, name string, t reflect.Type) any {
	switch {
	case t == reflect.TypeFor[metav1.Duration]():
		return []string{"0s", "1s", "5ms", "1m30s", "72h", "10x"}[random.IntN(6)]
	case t == reflect.TypeFor[resource.Quantity]():
		return []string{"1Gi", "1e3", "0.5"}[random.IntN(3)]
	case t == reflect.TypeFor[map[string]string]():
		out := map[string]string{}
		for _, key := range append(slices.Clone(randomKeys[name]), "a.b") {
			if random.IntN(3) == 0 && (key != "a.b" || randomKeys[name] == nil) {
				out[key] = randomTexts[random.IntN(len(randomTexts))]
			}
		}
		return out
	}
	switch t.Kind() {
	case reflect.Pointer:
		return randomValue(random, name, t.Elem())
	case reflect.Bool:
		return random.IntN(2) == 0
	case reflect.Int32, reflect.Int64, reflect.Uint32:
		return []int64{0, 1, 2, 5, 30, 250, 4096, -1}[random.IntN(8)]
	case reflect.Float64:
		return []float64{0.5, 0.9, 2}[random.IntN(3)]
	case reflect.String:
		return randomTexts[random.IntN(len(randomTexts))]
	case reflect.Slice:
		out := []any{}
		for range random.IntN(3) {
			out = append(out, randomValue(random, name, t.Elem()))
		}
		return out
	case reflect.Map:
		return map[string]any{"memory": randomValue(random, name, t.Elem())}
	case reflect.Struct:
		out := map[string]any{}
		for field := range t.Fields() {
			if key, _, _ := strings.Cut(field.Tag.Get("json"), ","); key != "" && key != "-" && random.IntN(2) == 0 {
				out[key] = randomValue(random, key, field.Type)
			}
		}
		return out
	}
	return nil
}

// FuzzKubeletConfiguration: a kubelet decodes the file for any accepted configuration.
func FuzzKubeletConfiguration(f *testing.F) {
	f.Add([]byte(`{"maxPods":"math.least(110, cpu * 30)","kubeReserved":{"memory":"256 * Mi + memory / 50"},"evictionHard":{"memory.available":"5%"}}`), 2, 4096)
	f.Add([]byte(`{"maxPods":42,"logging":{"format":"json","flushFrequency":"5s"},"featureGates":{"A":true},"reservedMemory":[{"numaNode":0,"limits":{"memory":"1Gi"}}]}`), 4, 8192)
	f.Add([]byte(`{"evictionSoft":{"memory.available":"memory / 10"},"evictionSoftGracePeriod":{"memory.available":"1m"},"reservedSystemCPUs":"0-1"}`), 16, 65536)
	f.Add([]byte(`{"maxPod":5,"syncFrequency":"10x","providerID":"x","podPidsLimit":1e999,"tracing":{"samplingRatePerMillion":5}}`), 1, 512)
	f.Fuzz(func(t *testing.T, raw []byte, cores, memoryMiB int) {
		spec := &v1alpha1.KubeletConfiguration{}
		if cores < 1 || cores > 1024 || memoryMiB < 256 || memoryMiB > 1<<24 || json.Unmarshal(raw, spec) != nil {
			return
		}
		written := mustEncode(t, spec)
		again := &v1alpha1.KubeletConfiguration{}
		NewWithT(t).Expect(json.Unmarshal([]byte(written), again)).To(Succeed(), "%s was written as %s", raw, written)
		class := func(k *v1alpha1.KubeletConfiguration) *v1alpha1.ProxmoxNodeClass {
			return &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{KubeletConfiguration: k}}
		}
		if len(spec.AllowedUnsafeSysctls) == 0 {
			spec.AllowedUnsafeSysctls = nil // an empty list has always been in the hash
		}
		if len(spec.ClusterDNS) == 0 {
			spec.ClusterDNS = nil
		}
		NewWithT(t).Expect(class(spec).Hash()).To(Equal(class(again).Hash()), "the hash of %s changes when it is written", raw)
		checkRendered(t, spec, cores, memoryMiB)
	})
}

func TestWithPinning(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	overhead := cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}
	pinned := instance.Intent{Binding: &instance.Binding{Cells: []vmconfig.Cell{{VCPUs: 2}}, CPUs: "2-3"}}
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, pinned, overhead)).To(And(
		HaveField("CPUManagerPolicy", "static"), HaveField("TopologyManagerPolicy", "best-effort")))

	own := kubeletconfig.KubeletConfiguration{CPUManagerPolicy: "none", TopologyManagerPolicy: "restricted"}
	g.Expect(withPinning(own, pinned, overhead)).To(Equal(own), "the settings of the class take precedence")

	floating := instance.Intent{Binding: &instance.Binding{Cells: []vmconfig.Cell{{VCPUs: 2}}}}
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, floating, overhead)).To(Equal(kubeletconfig.KubeletConfiguration{}), "bound memory without pinned cores")
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, instance.Intent{}, overhead)).To(Equal(kubeletconfig.KubeletConfiguration{}))
	g.Expect(withPinning(kubeletconfig.KubeletConfiguration{}, pinned, cloudprovider.InstanceTypeOverhead{})).To(Equal(kubeletconfig.KubeletConfiguration{}),
		"a kubelet without reserved CPUs does not start with the static policy")
}
