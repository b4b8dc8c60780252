// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

func TestFunctions(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		`{{ default "d" "" }}{{ default "d" "v" }}{{ default "d" 0 }}`: "dvd",
		`{{ coalesce "" 0 "c" "d" }}`:                                  "c",
		`{{ ternary "y" "n" true }}{{ ternary "y" "n" false }}`:        "yn",
		`{{ toJson .Metadata.Tags }}`:                                  `["karpenter","k8s"]`,
		`{{ toPrettyJson .Metadata.Tags }}`:                            "[\n  \"karpenter\",\n  \"k8s\"\n]",
		`{{ toYamlPretty .Network | contains "\n  - 1.1.1.1" }}`:       "true",
		`{{ toPrettyYaml .Network | contains "\n  - 1.1.1.1" }}`:       "true",
		`{{ indent 2 "a\nb" }}`:                                        "  a\n  b",
		`{{ nindent 2 "a\nb" }}`:                                       "\n  a\n  b",
		`{{ quote "a\"b" }} {{ quote 3 }}`:                             `"a\"b" "3"`,
		`{{ upper "aB" }}{{ lower "aB" }}{{ trim " x " }}`:             "ABabx",
		`{{ trimSuffix ".x" "a.x" }}{{ trimPrefix "a." "a.x" }}`:       "ax",
		`{{ "a-b-c" | replace "-" "+" }}`:                              "a+b+c",
		`{{ regexFind "[0-9]+" "ab12c3" }}`:                            "12",
		`{{ regexFindString "[0-9]+" "ab12c3" }}`:                      "12",
		`{{ regexFindString "^(a+)-(b+)$" "aa-bb" 2 }}`:                "bb",
		`{{ regexFindString "x" "aa" 1 }}`:                             "",
		`{{ regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }}`:           "-W-xxW-",
		`{{ getValue "ds=nocloud;i=1234" "i" }}`:                       "1234",
		`{{ getValue "ds=nocloud;i=1234" "x" }}`:                       "",
		`{{ b64enc "hello" }}{{ b64dec "aGVsbG8=" }}`:                  "aGVsbG8=hello",
		`{{ sha256sum "abc" }}`:                                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		`{{ omit .Values "password" | toYaml }}`:                       "apiServer: https://10.0.0.1:6443",
		`{{ toYaml (omit .Kubernetes.KubeletConfiguration "apiVersion" "kind" "registerWithTaints" "evictionHard" "kubeReserved" "systemReserved") }}`: "maxPods: 64\nproviderID: proxmox://region-1/20001\nshutdownGracePeriod: 30s",
		`{{ omit .Values "password" | setDefault "a.b.c" true | setDefault "a.b.d" 5 | setDefault "apiServer" "x" | toYaml }}`:                         "a:\n  b:\n    c: true\n    d: 5\napiServer: https://10.0.0.1:6443",
		`{{ setDefault "apiServer.port" 1 .Values | setDefault "password" "x" | toYaml }}`:                                                             "apiServer: https://10.0.0.1:6443\npassword: hunter2",
		`{{ empty "" }}{{ empty "x" }}`:                                              "truefalse",
		`{{ contains "b" "abc" }}{{ hasPrefix "a" "abc" }}{{ hasSuffix "a" "abc" }}`: "truetruefalse",
		`{{ index (split "a,b" ",") 1 }}`:                                            "b",
		`{{ join .Metadata.Tags "+" }}`:                                              "karpenter+k8s",
		`{{ hasKey .Values "apiServer" }}`:                                           "true",
		`{{ get .Kubernetes.NodeLabels "karpenter.sh/nodepool" }}`:                   "default",
		`{{ hasTag .Metadata.Tags "nope" }}`:                                         "false",
		`{{ cidrhost "192.168.7.5/24" }}`:                                            "192.168.7.5",
		`{{ cidrhost "192.168.7.5/24" 10 }}`:                                         "192.168.7.10",
		`{{ cidrhost "192.168.7.5/24" -1 }}`:                                         "192.168.7.255",
		`{{ cidrhost "2001:db8::/64" 258 }}`:                                         "2001:db8::102",
		`{{ cidrslaac "BC:24:11:7D:F3:15" "2001:db8::/64" }}`:                        "2001:db8::be24:11ff:fe7d:f315/64",
		`{{ cidrslaac "BC:24:11:7D:F3:15" "2001:db8::1:0/112" }}`:                    "2001:db8::1:f315/112",
		`{{ cidrslaac "BC:24:11:7D:F3:15" "2001:db8::/64" | cidrhost }}`:             "2001:db8::be24:11ff:fe7d:f315",
	} {
		NewWithT(t).Expect(string(render(t, bootdata.Templates{UserData: template}, newData(t)).UserData)).To(Equal(want), template)
	}
}

func TestFunctionErrors(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		`{{ b64dec "%" }}`:                                     "b64dec: the argument is not base64",
		`{{ regexFind "(" "x" }}`:                              "regexFind: the first argument is not a valid regular expression",
		`{{ regexReplaceAll "(" "x" "y" }}`:                    "regexReplaceAll: the first argument is not a valid regular expression",
		`{{ indent -1 "x" }}`:                                  "indent: indentation -1 is not between 0 and 256",
		`{{ get .Metadata.Hostname "x" }}`:                     "get: get needs a map, for example .Values, found string",
		`{{ setDefault "a" 1 "x" }}`:                           "setDefault: setDefault needs an object or a map, found string",
		`{{ omit "x" "a" }}`:                                   "omit: omit needs an object or a map, found string",
		`{{ join "x" "," }}`:                                   "join: join needs a list, found string",
		`{{ cidrhost "10.0.0.0/30" 4 }}`:                       "cidrhost: a /30 network has no host number 4",
		`{{ cidrhost "10.0.0.0/30" -5 }}`:                      "cidrhost: a /30 network has no host number -5",
		`{{ cidrslaac "x" "2001:db8::/64" }}`:                  "cidrslaac: the first argument is not a MAC address",
		`{{ cidrslaac "BC:24:11:7D:F3:15" "10.0.0.0/8" }}`:     "must be an IPv6 network with a prefix of at most 112 bits",
		`{{ cidrslaac "BC:24:11:7D:F3:15" "2001:db8::/120" }}`: "must be an IPv6 network with a prefix of at most 112 bits",
	} {
		NewWithT(t).Expect(bootdata.Render(bootdata.Templates{UserData: template}, newData(t))).Error().To(MatchError(ContainSubstring(want)), template)
	}
}

// Templates that were written for the original provider work unchanged, so none of its
// functions may be removed.
func TestUpstreamFunctions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	names := map[string]bool{}
	for _, f := range bootdata.Functions() {
		g.Expect(names).NotTo(HaveKey(f.Name()))
		g.Expect(f.Returns).NotTo(BeEmpty(), f.Name())
		names[f.Name()] = true
	}
	for _, name := range strings.Fields(
		`default coalesce ternary toJson toPrettyJson toYaml toYamlPretty indent nindent quote upper lower trim
		trimSuffix trimPrefix replace regexFind regexFindString regexReplaceAll getValue b64enc b64dec empty contains
		hasPrefix hasSuffix split join get hasKey hasTag cidrhost cidrslaac`) {
		g.Expect(names).To(HaveKey(name))
	}
}
