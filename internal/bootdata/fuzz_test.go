// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	yamlv3 "go.yaml.in/yaml/v3"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// The default network-config contains exactly the values of the VM, whatever they are.
func FuzzNetworkConfig(f *testing.F) {
	f.Add("BC:24:11:00:00:01", "192.168.0.17/24", "192.168.0.1", "192.168.0.53", "example.com", 1400)
	f.Add("", "2001:db8::17/64", "fe80::1%eth0", "::", "\"\n- x", 0)
	f.Add("x", "yes", "~", "{}", "<&>", -1)
	f.Fuzz(func(t *testing.T, mac, address, gateway, dns, search string, mtu int) {
		for _, text := range []string{mac, address, gateway, dns, search} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, isUnprintable) {
				return
			}
		}
		files, err := bootdata.Render(bootdata.Templates{}, bootdata.Data{Network: bootdata.Network{
			Interfaces:  []bootdata.Interface{{MacAddr: mac, Address4: []string{address}, Gateway4: gateway, MTU: mtu}},
			NameServers: []string{dns}, SearchDomains: []string{search},
		}})
		if err != nil {
			t.Fatalf("rendering: %v", err)
		}
		var config struct {
			Ethernets map[string]struct {
				Match       struct{ MACAddress string }
				MTU         int
				Addresses   []string
				Routes      []struct{ Via string }
				Nameservers struct{ Addresses, Search []string }
			}
		}
		if err := yamlv3.Unmarshal(files.NetworkConfig, &config); err != nil {
			t.Fatalf("%s: %v", files.NetworkConfig, err)
		}
		eth0, ok := config.Ethernets["eth0"]
		switch {
		case !ok || len(config.Ethernets) != 1, eth0.Match.MACAddress != strings.ToLower(mac), eth0.MTU != mtu,
			!slices.Equal(eth0.Addresses, []string{address}), !slices.Equal(eth0.Nameservers.Addresses, []string{dns}),
			!slices.Equal(eth0.Nameservers.Search, []string{search}), (len(eth0.Routes) == 1) != (gateway != ""),
			len(eth0.Routes) == 1 && eth0.Routes[0].Via != gateway:
			t.Errorf("%q is read as %+v", files.NetworkConfig, config)
		}
	})
}

// isUnprintable reports whether YAML does not allow a character unless it is escaped, takes it
// for the end of a line, or a library replaces it. Rendering may fail for such characters,
// except for those that JSON escapes.
func isUnprintable(r rune) bool {
	return r >= 0x7f && r < 0xa0 || slices.Contains([]rune{0x2028, 0x2029, 0xfeff, 0xfffd, 0xfffe, 0xffff}, r)
}

// Functions that print a value in YAML or JSON print one that is read as the same.
func FuzzEncoders(f *testing.F) {
	for _, seed := range []string{"a", "yes", "null", "0x10", "a: b", "- a", "\t", "\x00", "é\u2028", "'\"\\", "|\n  a\n", "1e3", "2026-01-01"} {
		f.Add(seed)
	}
	const template = "#cloud-config\nquote: {{ quote .Values.a }}\njson: {{ toJson .Values.a }}\nmap: {{ toJson .Values }}\n" +
		"yaml: {{ toYaml .Values | nindent 2 }}\npretty: {{ toYamlPretty .Values | nindent 2 }}\nbase64: {{ .Values.a | b64enc }}\nback: {{ .Values.a | b64enc | b64dec | quote }}\n"
	f.Fuzz(func(t *testing.T, value string) {
		if !utf8.ValidString(value) || strings.ContainsFunc(value, isUnprintable) {
			return
		}
		files, err := bootdata.Render(bootdata.Templates{UserData: template}, bootdata.Data{Values: map[string]string{"a": value}})
		if err != nil {
			t.Fatalf("rendering %q: %v", value, err)
		}
		var read struct {
			Quote, JSON, Back string
			Map, YAML, Pretty map[string]string
		}
		if err := yamlv3.Unmarshal(files.UserData, &read); err != nil {
			t.Fatalf("%s: %v", files.UserData, err)
		}
		for name, found := range map[string]string{
			"quote": read.Quote, "toJson": read.JSON, "toJson of a map": read.Map["a"], "toYaml": read.YAML["a"], "toYamlPretty": read.Pretty["a"], "b64dec": read.Back,
		} {
			if found != value {
				t.Errorf("%s: %q is read as %q from %q", name, value, found, files.UserData)
			}
		}
	})
}

// The kubelet's configuration loses nothing when fields that are not set are omitted.
func FuzzKubeletConfiguration(f *testing.F) {
	f.Add([]byte(`{"maxPods":64,"evictionHard":{"memory.available":"100Mi"},"shutdownGracePeriod":"30s","clusterDNS":["10.96.0.10"]}`))
	f.Add([]byte(`{"podPidsLimit":9223372036854775807,"cpuCFSQuota":false,"registerWithTaints":[{"key":"a","effect":"NoSchedule"}]}`))
	f.Add([]byte(`{"kubeReserved":{"cpu":"100m"},"featureGates":{"A":true},"logging":{"format":"json"},"syncFrequency":"1m0s"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var config kubeletconfig.KubeletConfiguration
		if json.Unmarshal(raw, &config) != nil {
			return
		}
		want, err := json.Marshal(config)
		if err != nil {
			return
		}
		written, err := json.Marshal(bootdata.KubeletConfiguration{KubeletConfiguration: config})
		if err != nil {
			t.Fatal(err)
		}
		var again kubeletconfig.KubeletConfiguration
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		if found, err := json.Marshal(again); err != nil || string(found) != string(want) {
			t.Errorf("%s was written as %s and read as %s (%v)", want, written, found, err)
		}
	})
}

// Arithmetic on addresses stays in the network.
func FuzzCIDR(f *testing.F) {
	f.Add("10.0.0.5/24", int64(-1), "BC:24:11:00:00:01")
	f.Add("2001:db8::/64", int64(9223372036854775807), "00:00:00:00:00:00")
	f.Add("::ffff:10.0.0.1/120", int64(-9223372036854775808), "")
	f.Fuzz(func(t *testing.T, cidr string, number int64, mac string) {
		files, err := bootdata.Render(bootdata.Templates{UserData: "#!{{ cidrhost .Values.cidr .Resources.CPU }}"},
			bootdata.Data{Values: map[string]string{"cidr": cidr}, Resources: bootdata.Resources{CPU: number}})
		if err == nil {
			checkAddress(t, cidr, strings.TrimPrefix(string(files.UserData), "#!"))
		}
		files, err = bootdata.Render(bootdata.Templates{UserData: "#!{{ cidrslaac .Values.mac .Values.cidr }}"}, bootdata.Data{Values: map[string]string{"cidr": cidr, "mac": mac}})
		if err == nil {
			address, _, _ := strings.Cut(strings.TrimPrefix(string(files.UserData), "#!"), "/")
			checkAddress(t, cidr, address)
		}
	})
}

func checkAddress(t *testing.T, cidr, address string) {
	t.Helper()
	prefix, err := netip.ParsePrefix(cidr)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%q was accepted", cidr)
	if addr, err := netip.ParseAddr(address); err != nil || !prefix.Masked().Contains(addr) {
		t.Errorf("%q is not in %s (%v)", address, cidr, err)
	}
}

// omit removes keys and changes nothing else.
func FuzzOmit(f *testing.F) {
	f.Add(int64(6<<30), int64(2))
	f.Add(int64(9223372036854775807), int64(-1))
	f.Fuzz(func(t *testing.T, memory, pages int64) {
		want := bootdata.Resources{Memory: memory, Hugepages2Mi: pages}
		data := bootdata.Data{Resources: want}
		data.Resources.CPU = 2
		files, err := bootdata.Render(bootdata.Templates{UserData: `#!{{ omit .Resources "cpu" | toJson }}` + "\n" + `{{ (omit .Resources "cpu").memory }}`}, data)
		if err != nil {
			t.Fatal(err)
		}
		encoded, field, _ := strings.Cut(strings.TrimPrefix(string(files.UserData), "#!"), "\n")
		var read bootdata.Resources
		if err := json.Unmarshal([]byte(encoded), &read); err != nil || read != want {
			t.Errorf("%+v was written as %s (%v)", want, encoded, err)
		}
		if field != strconv.FormatInt(memory, 10) {
			t.Errorf("%d was written as %s", memory, field)
		}
	})
}
