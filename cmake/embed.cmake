# cmake -DINPUT=flow.bpf.o -DHEADER=xdp/flow_object.h -DNAMESPACE=accel::xdp -DNAME=kFlowObject -DOUTPUT=flow_object.cc -P embed.cmake:
# a file as an array, NAME, and its size, NAMESize.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"
namespace ${NAMESPACE} {
alignas(8) const unsigned char ${NAME}[] = {
${bytes}};
const size_t ${NAME}Size = sizeof(${NAME});
}  // namespace ${NAMESPACE}
")
