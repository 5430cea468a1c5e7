# cmake -DINPUT=flow.bpf.o -DOUTPUT=flow_object.cc -P embed.cmake: the BPF object as an array.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include \"xdp/flow_object.h\"
namespace accel::xdp {
alignas(8) const unsigned char kFlowObject[] = {
${bytes}};
const size_t kFlowObjectSize = sizeof(kFlowObject);
}  // namespace accel::xdp
")
