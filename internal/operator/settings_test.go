// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

const cloudConfig = `clusters:
  - region: home
    url: https://127.0.0.1:8006
    token_id: kubernetes@pve!karpenter
    token_secret: 11111111-2222-3333-4444-555555555555
`

// file writes a file for one test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	return path
}

// clearEnv unsets the variables of all settings for one test.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, option := range operator.OptionTable() {
		t.Setenv(option.Env, "")
	}
}

// settingCase is a value for one setting, what it sets, and invalid values with the expected
// errors.
type settingCase struct {
	value string
	want  any
	bad   map[string]string
}

// field returns the field of a setting, which has the same name.
func field(o *operator.Options, env string) any {
	name := strings.ReplaceAll(env, "_", "")
	return reflect.ValueOf(o).Elem().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) }).Interface()
}

func settingCases() map[string]settingCase {
	vmid := map[string]string{"many": "want a whole number", "99": "from 100 to 999999999", "1.5": "want a whole number"}
	cases := map[string]settingCase{
		"SYSTEM_NAMESPACE":           {"infra", "infra", nil},
		"NODE_POLICY":                {"simple", "simple", map[string]string{"clever": "want one of simple"}},
		"VM_SIZE_POLICY":             {"InstanceType", v1alpha1.VMSizeInstanceType, map[string]string{"exact": "want one of Auto, Exact, InstanceType"}},
		"PROXMOX_VMID":               {"30000", 30000, vmid},
		"PROXMOX_VMID_MAX":           {"40000", 40000, vmid},
		"PROXMOX_EXCLUDED_VMIDS":     {"9999, 30555", []int{9999, 30555}, map[string]string{"csi": "want VMIDs from 100 to 999999999", "99": "want VMIDs from 100"}},
		"VM_MEMORY_OVERHEAD_PERCENT": {"0.1", new(0.1), map[string]string{"7.5": "0.075", "-0.1": "0.075", "NaN": "0.075", "some": "0.075"}},
		"PROXMOX_TEMPLATE_VMID":      {"3000", 3000, vmid},
		"PROXMOX_TEMPLATE_VMID_MAX":  {"4000", 4000, vmid},
		"PROXMOX_CLONE_SLOTS":        {"9", 9, map[string]string{"0": "from 1 to 100", "101": "from 1 to 100"}},
		"PCI_RESOURCES": {"gpu=nvidia.com/gpu", instancetype.Devices{"nvidia.com/gpu": {"gpu"}},
			map[string]string{"gpu": "want <PCI mapping>=<resource>", "gpu=cpu": "want <PCI mapping>"}},
		"VOLUME_ATTACHMENT_LIMITS": {"a=1,b=2", map[string]int{"a": 1, "b": 2},
			map[string]string{"24": "want <CSI driver>=<number>", "a=-1": "want <CSI driver>"}},
		"HOST_MAINTENANCE_POLICY":      {"keep", maintenance.PolicyKeep, map[string]string{"evict": "want one of drain, keep"}},
		"ORPHAN_POLICY":                {"report", garbagecollection.PolicyReport, map[string]string{"shred": "want one of delete, report"}},
		"ORPHAN_DELETION_MAX_FRACTION": {"1", 1.0, map[string]string{"20": "from 0 to 1", "NaN": "from 0 to 1"}},
		"WEB_PAGE_PORT":                {"8443", 8443, map[string]string{"https": "want a whole number", "65536": "from 0 to 65535"}},
	}
	const price = "want a number from 0"
	for _, env := range []string{"PRICE_PER_VCPU", "PRICE_PER_GB", "PRICE_PER_NODE", "PRICE_PER_DEVICE"} {
		cases[env] = settingCase{"0.5", 0.5, map[string]string{"cheap": price, "-1": price, "NaN": price, "+Inf": price}}
	}
	for tooShort, settings := range map[string][]string{
		"-1m":  {"LAUNCH_RETRY_TIMEOUT"},
		"-1s":  {"HOST_DRIFT_AFTER", "HOST_MAINTENANCE_TIMEOUT", "SHUTDOWN_TIMEOUT"},
		"50ms": {"PROXMOX_POLL_INTERVAL"},
		"59s":  {"JOIN_TOKEN_TTL"},
		"0s": {
			"PROXMOX_TASK_TIMEOUT", "ORPHAN_GRACE_PERIOD", "PROXMOX_RESPONSE_TIMEOUT", "REPAIR_UNREADY_TOLERATION", "REPAIR_DRAIN_TIMEOUT",
		},
	} {
		for _, env := range settings {
			cases[env] = settingCase{"7m", 7 * time.Minute, map[string]string{"soon": "want a duration of at least", tooShort: "want a duration of at least"}}
		}
	}
	return cases
}

// fileSettings are the settings with paths of files, which TestLoadInvalidSettings and TestLoadCustomCatalog cover.
var fileSettings = map[string]bool{"CLOUD_CONFIG": true, "INSTANCE_TYPES_FILE": true, "NODE_SETTING_FILE": true}

func TestLoadSettings(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for _, option := range operator.OptionTable() {
		if fileSettings[option.Env] {
			continue
		}
		t.Run(option.Env, func(t *testing.T) {
			g := NewWithT(t)
			c, ok := settingCases()[option.Env]
			g.Expect(ok).To(BeTrue(), "the setting has no test: add it to settingCases")
			clearEnv(t)
			t.Setenv("CLOUD_CONFIG", config)

			t.Setenv(option.Env, c.value)
			settings, err := operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(field(settings.Options, option.Env)).To(Equal(c.want))
			for bad, message := range c.bad {
				t.Setenv(option.Env, bad)
				_, err := operator.Load(nil)
				expectLine(g, err, option.Env, bad, message)
			}
			t.Setenv(option.Env, "")
			settings, err = operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred(), "an empty variable is ignored")
			if option.Flag == "" {
				return
			}
			if option.Default != "" && option.Default != c.value {
				g.Expect(field(settings.Options, option.Env)).NotTo(Equal(c.want), "the test's value must not be the default")
				t.Setenv(option.Env, option.Default)
			}
			settings, err = operator.Load([]string{"--" + option.Flag, c.value})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(field(settings.Options, option.Env)).To(Equal(c.want), "a flag takes precedence over its variable")
			for bad, message := range c.bad {
				_, err := operator.Load([]string{"--" + option.Flag + "=" + bad})
				expectLine(g, err, option.Flag, bad, message)
			}
		})
	}
}

// expectLine checks that the error is one line that contains all parts.
func expectLine(g *WithT, err error, parts ...string) {
	g.Expect(err).To(MatchError(Not(ContainSubstring("\n"))))
	for _, part := range parts {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
}

func TestLoadDefaults(t *testing.T) {
	clearEnv(t)
	g := NewWithT(t)
	settings, err := operator.Load([]string{"--cloud-config", file(t, "cloud.yaml", cloudConfig)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(settings.Cloud.Clusters).To(ConsistOf(HaveField("Region", "home")))
	g.Expect(settings.Options.SystemNamespace).To(Equal("kube-system"))
	g.Expect(settings.Options.ProxmoxVMID).To(Equal(20000))
	g.Expect(settings.Options.ProxmoxVMIDMax).To(Equal(99999))
	defaults := operator.DefaultOptions()
	defaults.CloudConfig = settings.Options.CloudConfig
	g.Expect(settings.Options).To(Equal(defaults), "without flags and variables the defaults of the table apply")
	seen := map[string]bool{}
	for _, option := range operator.OptionTable() {
		g.Expect(option.Help).To(HaveSuffix("."), option.Env)
		g.Expect(seen[option.Env] || seen[option.Flag] && option.Flag != "").To(BeFalse(), option.Env+" is listed twice")
		seen[option.Env], seen[option.Flag] = true, true
		g.Expect(option.Flag == "" || strings.ToUpper(strings.ReplaceAll(option.Flag, "-", "_")) == option.Env).To(BeTrue(), option.Env)
	}
}

// A setting has the same name in the table and in Options.
func TestOptionTableNamesFields(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	fields := map[string]bool{}
	for field := range reflect.TypeFor[operator.Options]().Fields() {
		if field.IsExported() {
			fields[strings.ToUpper(field.Name)] = true
		}
	}
	for _, option := range operator.OptionTable() {
		name := strings.ReplaceAll(option.Env, "_", "")
		g.Expect(fields).To(HaveKey(name), option.Env)
		delete(fields, name)
	}
	g.Expect(fields).To(BeEmpty(), "every field of Options is a setting")
}

// No VM and no template gets the VMID of the Proxmox CSI driver's volumes.
func TestVMIDsExcludeCSI(t *testing.T) {
	t.Parallel()
	for vmid, options := range map[int]*operator.Options{9999: operator.DefaultOptions(), 30555: {ProxmoxExcludedVMIDs: []int{30555}}} {
		NewWithT(t).Expect(options.InstanceSettings().VMIDs.Exclude).To(ConsistOf(vmid))
		NewWithT(t).Expect(options.TemplateSettings().VMIDs.Exclude).To(ConsistOf(vmid))
	}
}

// Fewer, larger nodes are cheaper than more, smaller ones.
func TestDefaultPricing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	prices, catalog := operator.DefaultOptions().Pricing(), instancetype.DefaultCatalog()
	small, ok := catalog.Get("s1.2VCPU-8GB")
	g.Expect(ok).To(BeTrue())
	large, ok := catalog.Get("s1.4VCPU-16GB")
	g.Expect(ok).To(BeTrue())
	g.Expect(2 * prices.Price(small, 0)).To(BeNumerically(">", prices.Price(large, 0)))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(operator.Version()).To(MatchRegexp(`^karpenter-provider-proxmox \S+ \(Karpenter \S+, go1\.\S+\)$`))
}

func TestLoadInvalidSettings(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"no_cloud_config": {args: []string{"--cloud-config", ""}, want: []string{"--cloud-config", "CLOUD_CONFIG", "is empty"}},
		"template_VMIDs_reversed": {args: []string{"--proxmox-template-vmid=5000", "--proxmox-template-vmid-max=4000"},
			want: []string{"PROXMOX_TEMPLATE_VMID_MAX", "4000", "5000"}},
		"VMIDs_reversed":       {args: []string{"--proxmox-vmid", "5000", "--proxmox-vmid-max", "4000"}, want: []string{"PROXMOX_VMID_MAX", "4000", "5000"}},
		"unknown_flag":         {args: []string{"--no-such-flag"}, want: []string{"no-such-flag", "--help"}},
		"extra_argument":       {args: []string{"start"}, want: []string{`"start"`, "--help"}},
		"flags_after_argument": {args: []string{"start", "--cloud-config", config}, want: []string{`"start"`, "--help"}},
		"two_invalid_variables": {env: map[string]string{"PROXMOX_VMID": "x", "ORPHAN_GRACE_PERIOD": "y"},
			want: []string{"PROXMOX_VMID", "ORPHAN_GRACE_PERIOD"}},
		"invalid_feature_gate": {args: []string{"--feature-gates", "NodeRepair=maybe"}, want: []string{"NodeRepair"}},
		"cloud_config_missing": {args: []string{"--cloud-config", "/nowhere/cloud.yaml"}, want: []string{"/nowhere/cloud.yaml", "does not exist"}},
		"cloud_config_invalid": {args: []string{"--cloud-config", file(t, "cloud.yaml", strings.Replace(cloudConfig, "url:", "uri:", 1))},
			want: []string{"clusters[0].uri", "unknown field"}},
		"node_settings_missing":       {args: []string{"--node-setting-file", "/nowhere/hosts.json"}, want: []string{"/nowhere/hosts.json"}},
		"node_settings_invalid":       {args: []string{"--node-setting-file", file(t, "hosts.json", "{")}, want: []string{"hosts.json"}},
		"instance_types_missing":      {args: []string{"--instance-types-file", "/nowhere/types.json"}, want: []string{"/nowhere/types.json"}},
		"instance_types_not_a_list":   {args: []string{"--instance-types-file", file(t, "types.json", `{"name": 7}`)}, want: []string{"types.json"}},
		"instance_types_without_name": {args: []string{"--instance-types-file", file(t, "types.json", `[{}]`)}, want: []string{"types.json", "name"}},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			_, err := operator.Load(append([]string{"--cloud-config", config}, c.args...))
			expectLine(NewWithT(t), err, c.want...)
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("11111111-2222"), "the error must not contain the secret")
		})
	}
}

func TestLoadCustomCatalog(t *testing.T) {
	clearEnv(t)
	g := NewWithT(t)
	t.Setenv("CLOUD_CONFIG", file(t, "cloud.yaml", cloudConfig))
	t.Setenv("INSTANCE_TYPES_FILE", file(t, "types.json", `[{"name": "big", "capacity": {"cpu": "4", "memory": "8Gi"}}]`))
	settings, err := operator.Load(nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, ok := settings.Catalog.Get("big")
	g.Expect(ok).To(BeTrue())
	g.Expect(settings.Catalog.Types()).NotTo(ContainElement(HaveField("Name", "t1.2VCPU-6GB")))
	g.Expect(settings.InstanceTypes(nil, nil).VMSizePolicy).To(Equal(v1alpha1.VMSizeInstanceType))
}
